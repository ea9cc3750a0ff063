"""Where to cut a program into the stages of a pipeline, told to a person; no torch here."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torchkiln.core._console import make_console
from torchkiln.report._memory_verdict import describe_size
from torchkiln.report._tables import print_table

if TYPE_CHECKING:
    from torchkiln.runtime._staging import PlannedStage, StagePlan

_COLUMNS = (
    *("stage", "modules", "time", "parameters", "gradients", "optimiser"),
    *("kept", "at once", "peak", "sent"),
)
_NUMBERS = tuple(column for column in _COLUMNS if column != "modules")
_LEAST_NEEDED = ("gradients", "sent", "at once")


def print_stage_plan(
    plan: StagePlan, limit_bytes: int, *, is_per_process: bool, lines: Sequence[str]
) -> bool:
    """Print stages with their memory, whether they fit, and what to write to have them.

    Args:
        plan: What `program.plan_stages(...)` returned.
        limit_bytes: The memory that is there, beside Python and its libraries.
        is_per_process: Whether that is for each stage, or for all of them together.
        lines: To be pasted.

    Returns:
        Whether the stages fit.
    """
    _print_plan(plan)
    fits = _print_verdict(plan, limit_bytes, is_per_process)
    console = make_console(plain_width=110)
    console.print("To use it:")
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    return fits


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
    console.print(
        "kept: by one micro-batch between its forward and backward; at once: micro-batches for "
        "which a stage keeps that; peak: all that a stage needs. Operators run one by one."
    )
    together = sum(stage.memory.total_bytes for stage in plan.stages)
    needed = plan.largest_bytes if is_per_process else together
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
    if plan.adds_recomputation:
        console.print(
            "Sizes are those with recomputation: stages that keep everything would need more."
        )
    slowest = max(stage.time_share for stage in plan.stages)
    console.print(
        f"The slowest stage takes {slowest:.0%} of the time; with equal stages it would be "
        f"{1 / len(plan.stages):.0%}."
    )
    return fits


def program_lines(plan: StagePlan) -> list[str]:
    """Return what to write in a program of Torchkiln's, or of PopTorch's."""
    names = ", ".join(f'"{name}"' for name in plan.pipeline)
    accumulation = f", gradient_accumulation={plan.gradient_accumulation}" if plan.training else ""
    recompute = ', recompute="auto"' if plan.adds_recomputation else ""
    return [
        f"  Options(pipeline=[{names}]{accumulation}{recompute})",
        "or, in a PopTorch program:",
        *(
            f"  poptorch.BeginBlock({module_path(name)}, ipu_id={stage})"
            for stage, name in enumerate(plan.pipeline)
        ),
        *(['  opts._Popart.set("autoRecomputation", 4)'] if plan.adds_recomputation else []),
    ]


def module_path(name: str) -> str:
    """Return how Python reaches a module of `model`: numbers are indices."""
    path = "model"
    for piece in name.split("."):
        path += f"[{piece}]" if piece.isdecimal() else f".{piece}"
    return path


def stages_to_plain(plan: StagePlan, limit_bytes: int, fits: bool) -> dict[str, Any]:
    """Return the plan as JSON values, sizes in bytes."""
    return {
        "pipeline": plan.pipeline,
        "gradient_accumulation": plan.gradient_accumulation,
        "is_measured": plan.is_measured,
        "adds_recomputation": plan.adds_recomputation,
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
