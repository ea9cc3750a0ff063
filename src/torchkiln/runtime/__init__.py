"""Compile a whole step once, run it: programs, optimisers, losses, executable cache."""

from torchkiln.data import register_container
from torchkiln.ops._loss_marks import identity_loss
from torchkiln.runtime._hooks import add_compile_hook
from torchkiln.runtime._loading import load_program as load
from torchkiln.runtime._models import inference_model, training_model
from torchkiln.runtime._program import Program
from torchkiln.runtime.capture._step import is_inside_program
from torchkiln.runtime.memory._report import MemoryReport
from torchkiln.runtime.optim._lamb import LAMB
from torchkiln.runtime.passes._stages import begin_block
from torchkiln.runtime.pipeline._weights import gather_weights
from torchkiln.runtime.recompute._modules import keep_activation

__all__ = [
    "LAMB",
    "MemoryReport",
    "Program",
    "add_compile_hook",
    "begin_block",
    "gather_weights",
    "identity_loss",
    "inference_model",
    "is_inside_program",
    "keep_activation",
    "load",
    "register_container",
    "training_model",
]
