"""What is checked when a model is wrapped and when it has been compiled."""

from __future__ import annotations

from typing import Any

from torch import nn

from poptorch._division import Division
from poptorch._errors import Error, translated
from poptorch._logging import logger
from poptorch._partition import check_accumulation
from poptorch._strategies import PipelinedExecution
from poptorch.enums import OutputMode
from poptorch.options import Options
from torchkiln import distributed, runtime
from torchkiln.core import warn_user
from torchkiln.data import flatten
from torchkiln.torch_internals._modules import RunningNormBase


def resolve_options(options: Options | None, training: bool) -> Options:
    """Freeze the user's options and return a frozen copy with a definite output mode."""
    if options is None:
        options = Options()
    if not isinstance(options, Options):
        raise Error(f"options must be poptorch.Options, got {type(options).__name__}")
    options.freeze()
    own = options.clone()
    if own.defaultOutputMode():
        own.outputMode(OutputMode.Final if training else OutputMode.All)
    own.freeze()
    return own


def check_inference_options(options: Options) -> None:
    """Refuse accumulation, which makes no sense without a weight update."""
    if options.Training.gradient_accumulation == 1:
        return
    message = (
        "You must set poptorch.Options().Training.gradientAccumulation to 1 for an inference "
        f"model, got {options.Training.gradient_accumulation}"
    )
    if isinstance(options._execution_strategy, PipelinedExecution):
        message += "; to keep a pipeline busy, use poptorch.Options().deviceIterations"
    raise Error(message)


def check_program(program: runtime.Program, module: nn.Module, options: Options) -> None:
    """Refuse a compiled program whose options or forward the original would refuse.

    Raises:
        Error: for a buffer that does not exist, or a buffer that forward replaces.
    """
    _check_named_buffers(module, options)
    _check_reassigned_buffers(program, module)


def warn_about_constant_outputs(program: runtime.Program) -> None:
    """Say which outputs are values that a call does not compute."""
    constant = program.metadata.constant_outputs
    if constant:
        warn_user(
            f"output tensors {', '.join(map(str, constant))} (counted from 0) depend on no input, "
            "parameter or buffer; each call returns them as they were at compilation, once"
        )


def warn_about_gradients(arguments: Any) -> None:
    """Log, as the original does, that nothing is differentiated with respect to an argument."""
    if any(tensor.requires_grad for tensor in flatten(arguments)[0]):
        logger.warning(
            "An input tensor has requires_grad=True; it is detached, because backward goes to "
            "parameters only"
        )


def join_other_processes(options: Options) -> None:
    """Join the others that train this model, if there are any and nobody has done so yet.

    In the original the devices reduce gradients, and a program need not call anything for that.

    Raises:
        Error: They do not come.
    """
    if options.Distributed._num_ranks > 1:
        with translated():
            distributed.start()


def check_division(options: Options, training: bool) -> None:
    """Refuse a pipeline of several processes that an update cannot fill.

    Raises:
        Error: with the original's words.
    """
    division = Division.of(options)
    if training and division is not None and isinstance(division.strategy, PipelinedExecution):
        check_accumulation(division.num_stages, options.Training.gradient_accumulation)


def _check_named_buffers(module: nn.Module, options: Options) -> None:
    if not options.exists("updatable_named_buffers"):
        return
    known = [name for name, _ in module.named_buffers()]
    for name in options.updatable_named_buffers:
        if name not in known:
            raise Error(
                f"updatableNamedBuffers names {name!r}, which is no buffer of the model; "
                f"buffers: {', '.join(known) or 'none'}"
            )


def _check_reassigned_buffers(program: runtime.Program, module: nn.Module) -> None:
    modules = dict(module.named_modules())
    for name in program.reassigned_buffers:
        # The running statistics of norms are the one exception of the original.
        if not isinstance(modules.get(name.rpartition(".")[0]), RunningNormBase):
            raise Error(
                f"Buffer {name!r} is reassigned within the model; write to it in place instead "
                f"(self.{name}.copy_(value))"
            )
