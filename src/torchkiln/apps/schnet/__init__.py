"""The SchNet benchmark, from settings to training, and what its checkpoints predict.

Names below are imported when first used: reading a command line needs no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchkiln.apps.schnet._trained import TrainedModel as TrainedModel
    from torchkiln.apps.schnet._trained import UnknownElement as UnknownElement
    from torchkiln.apps.schnet._trained import load_trained as load_trained

__all__ = ["TrainedModel", "UnknownElement", "load_trained"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(importlib.import_module("torchkiln.apps.schnet._trained"), name)
    raise AttributeError(f"module 'torchkiln.apps.schnet' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
