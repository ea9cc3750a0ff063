"""Compile a whole step once, run it: programs, optimisers, losses, executable cache."""

from torchkiln.data import register_container
from torchkiln.runtime._export import load_program as load
from torchkiln.runtime._hooks import add_compile_hook
from torchkiln.runtime._lamb import LAMB
from torchkiln.runtime._losses import identity_loss
from torchkiln.runtime._program import Program, inference_model, training_model
from torchkiln.runtime._step import is_capturing

__all__ = [
    "LAMB",
    "Program",
    "add_compile_hook",
    "identity_loss",
    "inference_model",
    "is_capturing",
    "load",
    "register_container",
    "training_model",
]
