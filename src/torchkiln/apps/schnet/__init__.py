"""The SchNet benchmark, from settings to training, and what its checkpoints predict.

Names below are imported when first used: reading a command line needs no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchkiln.apps.schnet._main import main as main
    from torchkiln.apps.schnet._trained import TrainedModel as TrainedModel
    from torchkiln.apps.schnet._trained import UnknownElement as UnknownElement
    from torchkiln.apps.schnet._trained import load_trained as load_trained

_PLACES = {
    "TrainedModel": "_trained",
    "UnknownElement": "_trained",
    "load_trained": "_trained",
    "main": "_main",
}
__all__ = list(_PLACES)


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        return getattr(importlib.import_module(f"torchkiln.apps.schnet.{_PLACES[name]}"), name)
    raise AttributeError(f"module 'torchkiln.apps.schnet' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
