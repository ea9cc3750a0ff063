"""Making programs: `training_model` and `inference_model`."""

from __future__ import annotations

import torch
from torch import nn

from torchkiln.core import OptimizerError, Options
from torchkiln.core._tracebacks import short_tracebacks
from torchkiln.runtime._arguments import require_module
from torchkiln.runtime._program import Program


@short_tracebacks()
def training_model(
    module: nn.Module,
    options: Options | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    name: str = "training step",
) -> Program:
    """Return a program that runs forward, loss, backward and update of `module` in one call.

    Forward computes the loss and returns it (alone, or anywhere in its outputs). The first call
    compiles for the shapes it gets. Weights live in `module` and optimiser state in `optimizer`
    (default: SGD, lr 0.01), always current. `name` stands beside the bar while it is compiled.
    """
    require_module(module)
    if optimizer is None:
        if next(module.parameters(), None) is None:
            raise OptimizerError(
                f"{type(module).__name__} has no parameters to train; use inference_model"
            )
        optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    return Program(module, options or Options(), optimizer, training=True, name=name)


@short_tracebacks()
def inference_model(
    module: nn.Module, options: Options | None = None, *, name: str = "inference"
) -> Program:
    """Return a program that runs forward of `module`; weights are shared, never copied.

    `name` stands beside the bar while it is compiled.
    """
    return Program(module, options or Options(), None, training=False, name=name)
