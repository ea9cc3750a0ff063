"""What a program is made from: a module and options, checked before anything is built."""

from __future__ import annotations

from typing import Any

from torch import nn

from torchkiln.core import Options, OptionsError, OutputMode, PipelineSchedule
from torchkiln.core._pipeline_options import check_micro_batches
from torchkiln.runtime.execute._anchors import check_anchor_names


def require_module(module: Any) -> None:
    """Raise `TypeError` for what is no module."""
    if isinstance(module, nn.Module):
        return
    hint = "; create an instance first" if isinstance(module, type) else ""
    raise TypeError(f"expected a torch.nn.Module, got {type(module).__name__}{hint}")


def resolve_options(options: Any, training: bool) -> Options:
    """Return the options of a program, with a definite output mode.

    Raises:
        OptionsError: if they make no sense for a program of this kind.
    """
    if not isinstance(options, Options):
        raise OptionsError(f"options must be torchkiln.Options, got {type(options).__name__}")
    if not training and options.gradient_accumulation != 1:
        raise OptionsError(
            "gradient_accumulation must be 1 for inference; use device_iterations to run "
            "several batches a call"
        )
    check_anchor_names(options, training)
    if options.is_divided:
        _check_division(options, training)
    if options.output_mode is OutputMode.DEFAULT:
        return options.replace(output_mode=OutputMode.FINAL if training else OutputMode.ALL)
    return options


def _check_division(options: Options, training: bool) -> None:
    """Refuse what a program that several processes divide cannot do."""
    if training and options.pipeline_schedule is PipelineSchedule.PIPELINED:
        check_micro_batches(options.num_stages, options.micro_batches_per_update)
    if options.anchors:
        raise OptionsError(
            f"anchors ({', '.join(options.anchors)}) cannot be kept while the model is divided "
            "into stages; return these tensors from forward, or run in one process"
        )
    if options.profile_dir is not None:
        raise OptionsError(
            "profile_dir cannot be used while the model is divided into stages; profile the "
            "program in one process, where pipeline=[...] changes nothing"
        )


def move_module(module: nn.Module, device: str) -> None:
    """Move the module's tensors, in place.

    Raises:
        OptionsError: if torch has no such device here.
    """
    try:
        module.to(device)
    except (RuntimeError, AssertionError) as error:  # whatever torch says of a device it lacks
        raise OptionsError(f"device {device!r} cannot be used here ({error})") from error
