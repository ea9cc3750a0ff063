"""Checkpoints: whole or not at all on disk, every digit of optimisers and generators in them.

Names below are imported when first used: to list checkpoints and read their facts needs no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchkiln.core._lazy_names import lazy_names

if TYPE_CHECKING:
    from torchkiln.checkpoints._divided import gather_optimizer_state as gather_optimizer_state
    from torchkiln.checkpoints._files import find_non_finite as find_non_finite
    from torchkiln.checkpoints._precision import keep_state_precision as keep_state_precision
    from torchkiln.checkpoints._state import load_optimizer_tensors as load_optimizer_tensors
    from torchkiln.checkpoints._state import optimizer_tensors as optimizer_tensors
    from torchkiln.checkpoints._state import random_state as random_state
    from torchkiln.checkpoints._state import set_random_state as set_random_state
    from torchkiln.checkpoints._store import Checkpoint as Checkpoint
    from torchkiln.checkpoints._store import CheckpointStore as CheckpointStore

_PLACES = {
    "Checkpoint": "torchkiln.checkpoints._store",
    "CheckpointStore": "torchkiln.checkpoints._store",
    "gather_optimizer_state": "torchkiln.checkpoints._divided",
    "find_non_finite": "torchkiln.checkpoints._files",
    "keep_state_precision": "torchkiln.checkpoints._precision",
    "load_optimizer_tensors": "torchkiln.checkpoints._state",
    "optimizer_tensors": "torchkiln.checkpoints._state",
    "random_state": "torchkiln.checkpoints._state",
    "set_random_state": "torchkiln.checkpoints._state",
}
__all__ = list(_PLACES)
__getattr__ = lazy_names(__name__, _PLACES)
