"""Checkpoints: whole or not at all on disk, every digit of optimisers and generators in them."""

from torchkiln.checkpoints._files import find_non_finite
from torchkiln.checkpoints._precision import keep_state_precision
from torchkiln.checkpoints._state import (
    load_optimizer_tensors,
    optimizer_tensors,
    random_state,
    set_random_state,
)
from torchkiln.checkpoints._store import Checkpoint, CheckpointStore

__all__ = [
    "Checkpoint",
    "CheckpointStore",
    "find_non_finite",
    "keep_state_precision",
    "load_optimizer_tensors",
    "optimizer_tensors",
    "random_state",
    "set_random_state",
]
