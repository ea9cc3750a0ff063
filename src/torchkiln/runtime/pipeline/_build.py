"""Building the stage that this process runs: the whole step is recorded, and one part compiled."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from torchkiln.core import Backend, CaptureError, OptionsError
from torchkiln.runtime.cache._cache import ExecutableCache
from torchkiln.runtime.capture._capture import Captured, Entry, capture, record_update
from torchkiln.runtime.capture._step import StepFunction
from torchkiln.runtime.compile._progress import CompileProgress
from torchkiln.runtime.compile._tracing import compile_native, compile_through_cache
from torchkiln.runtime.execute._built import Built
from torchkiln.runtime.execute._executable import GraphExecutable
from torchkiln.runtime.optim._arrangement import Arrangement
from torchkiln.runtime.passes._stages import Stages
from torchkiln.runtime.pipeline._cut import cut_step
from torchkiln.runtime.pipeline._parts import StagePart
from torchkiln.runtime.pipeline._plan import StagePlan, refuse_stale_buffers


def build_stage(
    step: StepFunction,
    batch: list[Tensor],
    arrangement: Arrangement | None,
    device: torch.device,
    make_workspace: Callable[[], Path],
) -> tuple[Built, StagePlan]:
    """Return the executable of this process' stage, and how the step was divided.

    Raises:
        OptionsError: The backend records nothing that could be cut.
        CaptureError: The step cannot be cut into these stages.
    """
    options = step.options
    if options.backend is Backend.EAGER:
        raise OptionsError(
            "backend='eager' runs forward as it stands, which cannot be divided into stages; use "
            "backend='capture' or 'inductor', or train in one process"
        )
    assert options.pipeline is not None
    with CompileProgress(options.show_progress, step.name) as progress:
        stages = Stages(options.pipeline)
        captured = capture(step, batch, arrangement, stages=stages, prepare=progress.build_helpers)
        if captured.mutated_inputs:
            name = step.signature.forms[captured.mutated_inputs[0]].name
            raise CaptureError(
                f"forward writes to its argument {name!r}, which only the stage that does so would "
                "see; write to a copy, or train in one process"
            )
        parts = cut_step(captured, step, arrangement, stages)
        refuse_stale_buffers(parts, step.binding)
        plan = StagePlan(tuple(parts), options.stage)
        own = _own_part(captured, step, arrangement, plan.part)
        built = _compile(own, step, device, make_workspace, progress)
    return dataclasses.replace(built, phases=progress.seconds), plan


def _own_part(
    captured: Captured, step: StepFunction, arrangement: Arrangement | None, part: StagePart
) -> Captured:
    """Return the entries of one stage, with an update of its own parameters."""
    entries: dict[str, Entry] = {name: entry.entry for name, entry in part.entries.items()}
    if arrangement is not None:
        # The norm of all gradients is known to nobody alone: it is limited before the update.
        recipe = dataclasses.replace(arrangement.recipe, clips=False)
        chosen = dataclasses.replace(arrangement, recipe=recipe).select(list(part.parameters))
        entries["update"] = record_update(step, chosen)
    return dataclasses.replace(captured, entries=entries, updated=list(part.parameters))


def _compile(
    own: Captured,
    step: StepFunction,
    device: torch.device,
    make_workspace: Callable[[], Path],
    progress: CompileProgress,
) -> Built:
    options = step.options
    if options.backend is Backend.CAPTURE:
        graphs = {name: entry.graph for name, entry in own.entries.items()}
        return Built(GraphExecutable(graphs), own.metadata(), compiled=1, captured=1)
    if options.cache_dir is None:
        return compile_native(own, step, device, make_workspace() / "program.pt2", progress)
    cache = ExecutableCache(options.cache_dir, options.cache_limit_bytes, options.trusted_dirs)
    return compile_through_cache(own, step, device, cache, make_workspace, progress)[1]
