"""The SchNet benchmark, from settings to training, and what its checkpoints predict.

Names below are imported when first used: reading a command line needs no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchkiln.core._lazy_names import lazy_names

if TYPE_CHECKING:
    from torchkiln.apps.schnet._main import main as main
    from torchkiln.apps.schnet._trained import TrainedModel as TrainedModel
    from torchkiln.apps.schnet._trained import UnknownElement as UnknownElement
    from torchkiln.apps.schnet._trained import load_trained as load_trained

_PLACES = {
    "TrainedModel": "torchkiln.apps.schnet._trained",
    "UnknownElement": "torchkiln.apps.schnet._trained",
    "load_trained": "torchkiln.apps.schnet._trained",
    "main": "torchkiln.apps.schnet._main",
}
__all__ = list(_PLACES)
__getattr__ = lazy_names(__name__, _PLACES)
