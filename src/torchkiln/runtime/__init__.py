"""Compile a whole step once, run it: programs, optimisers, losses, executable cache."""

from torchkiln.data import register_container
from torchkiln.runtime._checkpoint import Checkpoint, CheckpointStore
from torchkiln.runtime._checkpoint_files import find_non_finite
from torchkiln.runtime._checkpoint_state import (
    load_optimizer_tensors,
    optimizer_tensors,
    random_state,
    set_random_state,
)
from torchkiln.runtime._hooks import add_compile_hook
from torchkiln.runtime._program import Program, inference_model, training_model
from torchkiln.runtime.capture._losses import identity_loss
from torchkiln.runtime.capture._step import is_capturing
from torchkiln.runtime.compile._export import load_program as load
from torchkiln.runtime.memory._report import MemoryReport
from torchkiln.runtime.optim._lamb import LAMB
from torchkiln.runtime.optim._state_precision import keep_state_precision
from torchkiln.runtime.recompute._modules import keep_activation

__all__ = [
    "Checkpoint",
    "CheckpointStore",
    "LAMB",
    "MemoryReport",
    "Program",
    "add_compile_hook",
    "find_non_finite",
    "identity_loss",
    "inference_model",
    "is_capturing",
    "keep_activation",
    "keep_state_precision",
    "load",
    "load_optimizer_tensors",
    "optimizer_tensors",
    "random_state",
    "register_container",
    "set_random_state",
    "training_model",
]
