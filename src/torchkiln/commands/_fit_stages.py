"""`torchkiln fit --stages`: where to cut a program into the stages of a pipeline."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchkiln.commands._tables import print_table
from torchkiln.core import OptionsError
from torchkiln.core._console import make_console
from torchkiln.report._memory_verdict import describe_size

if TYPE_CHECKING:
    from torchkiln.runtime import Program
    from torchkiln.runtime._staging import PlannedStage, StagePlan

_COLUMNS = (
    *("stage", "modules", "time", "parameters", "gradients", "optimiser"),
    *("kept", "at once", "peak", "sent"),
)
_NUMBERS = tuple(column for column in _COLUMNS if column != "modules")
_LEAST_NEEDED = ("gradients", "sent", "at once")


def fit_stages(
    program: Program,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    num_stages: int,
    limit_bytes: int,
    *,
    is_per_process: bool,
    profile: Path | None,
) -> tuple[bool, dict[str, Any]]:
    """Choose stages of equal time, print them with their memory, and say whether they fit.

    Args:
        program: That is cut.
        args: Arguments of a call.
        kwargs: Arguments by name.
        num_stages: How many stages there shall be.
        limit_bytes: The memory that is there.
        is_per_process: Whether that is for each stage, or for all of them together.
        profile: Folder of a profile of the program, whose times count; None: they are estimated.

    Returns:
        Whether the stages fit, and the figures as JSON values.
    """
    measured = None if profile is None else _module_times(profile)
    plan = program.plan_stages(
        num_stages,
        args,
        kwargs,
        measured=measured,
        limit_bytes=limit_bytes if is_per_process else None,
    )
    _print_plan(plan)
    fits = _print_verdict(plan, limit_bytes, is_per_process)
    _print_lines(plan)
    return fits, _to_plain(plan, limit_bytes, fits)


def _module_times(folder: Path) -> dict[str, float]:
    """Return the time of each module in a profile, in microseconds of forward and backward."""
    from torchkiln.profiling.graph._file import load_profile

    times: dict[str, float] = {}
    for row in load_profile(folder).rows:
        if row.phase != "update" and row.us is not None:
            times[row.module] = times.get(row.module, 0.0) + row.us
    if not any(times.values()):
        raise OptionsError(
            f"the profile in {folder} has no times: it was planned and not measured; make one "
            "with profile_dir, or leave out --profile"
        )
    return times


def _print_plan(plan: StagePlan) -> None:
    source = "measured" if plan.is_measured else "estimated"
    print_table(
        f"{len(plan.stages)} stages; times are {source}, sizes in MB",
        _COLUMNS,
        [_cells(stage) for stage in plan.stages],
        right=_NUMBERS,
        may_be_left_out=_LEAST_NEEDED,
        may_be_shortened=("modules",),
    )


def _cells(stage: PlannedStage) -> list[str]:
    memory = stage.memory
    modules = stage.first if stage.first == stage.last else f"{stage.first} .. {stage.last}"
    return [
        str(memory.stage),
        modules,
        f"{stage.time_share:.0%}",
        _mb(memory.parameter_bytes),
        _mb(memory.gradient_sum_bytes),
        _mb(memory.optimizer_bytes),
        _mb(memory.kept_bytes),
        str(memory.num_kept),
        _mb(memory.total_bytes),
        _mb(memory.sent_bytes),
    ]


def _mb(size: int) -> str:
    megabytes = size / 2**20
    return f"{megabytes:,.0f}" if megabytes >= 10 else f"{megabytes:,.2f}"


def _print_verdict(plan: StagePlan, limit_bytes: int, is_per_process: bool) -> bool:
    console = make_console(plain_width=110)
    sizes = [stage.memory.total_bytes for stage in plan.stages]
    console.print(
        "kept: by one micro-batch between its forward and backward; at once: micro-batches for "
        "which a stage keeps that; peak: all that a stage needs. Operators run one by one."
    )
    needed = max(sizes) if is_per_process else sum(sizes)
    who = "each stage" if is_per_process else "all stages together on this machine"
    there = describe_size(limit_bytes)
    fits = needed <= limit_bytes
    if fits:
        console.print(f"It fits: {describe_size(needed)} of {there} for {who}.", style="green")
    else:
        console.print(
            f"It does not fit: {describe_size(needed)} are needed, there are {there} for {who}. "
            "More stages, smaller micro-batches or recompute need less.",
            style="red",
        )
    slowest = max(stage.time_share for stage in plan.stages)
    console.print(
        f"The slowest stage takes {slowest:.0%} of the time; with equal stages it would be "
        f"{1 / len(plan.stages):.0%}."
    )
    return fits


def _print_lines(plan: StagePlan) -> None:
    console = make_console(plain_width=110)
    names = ", ".join(f'"{name}"' for name in plan.pipeline)
    accumulation = f", gradient_accumulation={plan.gradient_accumulation}" if plan.training else ""
    console.print("To use it:")
    console.print(
        f"  Options(pipeline=[{names}]{accumulation})",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    console.print("or, in a PopTorch program:")
    for stage, name in enumerate(plan.pipeline):
        line = f"  poptorch.BeginBlock({module_path(name)}, ipu_id={stage})"
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def module_path(name: str) -> str:
    """Return how Python reaches a module of `model`: numbers are indices."""
    path = "model"
    for piece in name.split("."):
        path += f"[{piece}]" if piece.isdecimal() else f".{piece}"
    return path


def _to_plain(plan: StagePlan, limit_bytes: int, fits: bool) -> dict[str, Any]:
    """Return the plan as JSON values, sizes in bytes."""
    return {
        "pipeline": plan.pipeline,
        "gradient_accumulation": plan.gradient_accumulation,
        "is_measured": plan.is_measured,
        "stages": [
            {
                "first": stage.first,
                "last": stage.last,
                "time_share": stage.time_share,
                **dataclasses.asdict(stage.memory),
                "total_bytes": stage.memory.total_bytes,
            }
            for stage in plan.stages
        ],
        "limit_bytes": limit_bytes,
        "fits": fits,
    }
