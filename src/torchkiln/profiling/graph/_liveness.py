"""The memory of a step over its calls, with the line that each piece belongs to."""

from __future__ import annotations

from torchkiln.profiling.graph._attribution import Lines
from torchkiln.profiling.graph._values import Block, Liveness
from torchkiln.report._memory_verdict import available_bytes, best_first, describe_size
from torchkiln.runtime import MemoryReport
from torchkiln.runtime._inspection import EntryView, ProgramView
from torchkiln.runtime.memory._prediction import worst_of


def describe_liveness(view: ProgramView, lines: Lines, limit_bytes: int | None = None) -> Liveness:
    """Return the memory of the entry that needs most, and whether it fits.

    Args:
        view: The program.
        lines: Where lines are kept.
        limit_bytes: What it may use; None: what is free on this machine.
    """
    timeline = worst_of({name: entry.timeline for name, entry in view.entries.items()})
    offset = 0
    for entry in view.entries.values():
        if entry.timeline is timeline:
            break
        offset += len(entry.timeline.plan.calls)
    peak = timeline.peak_call
    blocks = _blocks(entry, lines, offset)
    limit = available_bytes() if limit_bytes is None else limit_bytes
    fits = view.memory.total_bytes <= limit
    return Liveness(
        always=_always(view.memory, timeline.peak_bytes),
        blocks=tuple(blocks),
        peak_call=offset + (peak or 0),
        peak_bytes=timeline.peak_bytes,
        machine_bytes=limit,
        fits=fits,
        advice=() if fits else _advice(view.memory, limit),
    )


def _always(memory: MemoryReport, peak_bytes: int) -> dict[str, int]:
    """Return what is there between steps; with the peak it is the total of the report."""
    kept = {
        "parameters and buffers": memory.parameter_bytes,
        "optimiser state": memory.optimizer_bytes,
        "batch": memory.batch_bytes,
        "outputs": memory.output_bytes,
    }
    # What is left of the gradients are the sums of an accumulating program.
    kept["gradient sums"] = memory.total_bytes - peak_bytes - sum(kept.values())
    return {name: size for name, size in kept.items() if size}


def _blocks(entry: EntryView, lines: Lines, offset: int) -> list[Block]:
    timeline = entry.timeline
    peak, turn = timeline.peak_call, timeline.turn()
    blocks = []
    for planned in timeline.plan.blocks:
        origin = timeline.origin(planned)
        if timeline.is_saved(planned, turn):
            kind = "activation"
        else:
            kind = "gradient" if timeline.is_gradient(planned) else "temporary"
        blocks.append(
            Block(
                size_bytes=planned.size_bytes,
                born=offset + planned.born,
                last=offset + planned.last,
                kind=kind,
                module=origin.module,
                line=lines.index(origin.line),
                operator=_operator(entry, planned.nodes),
                shape=planned.form,
                at_peak=peak is not None and planned.born <= peak <= planned.last,
            )
        )
    for index, call in enumerate(timeline.plan.calls):
        if call.scratch_bytes:
            origin = timeline.origin(call)
            blocks.append(
                Block(
                    size_bytes=call.scratch_bytes,
                    born=offset + index,
                    last=offset + index,
                    kind="temporary",
                    module=origin.module,
                    line=lines.index(origin.line),
                    operator=_operator(entry, tuple(call.nodes)),
                    shape="",
                    at_peak=index == peak,
                )
            )
    return blocks


def _operator(entry: EntryView, nodes: tuple[int, ...]) -> str:
    """Return the operator whose result a block holds: the last that computes something."""
    working = [number for number in sorted(nodes) if not entry.nodes[number].is_view]
    chosen = (working or sorted(nodes))[-1:]
    return entry.nodes[chosen[0]].operator if chosen else ""


def _advice(memory: MemoryReport, limit: int) -> tuple[str, ...]:
    return tuple(
        f"{remedy}: {describe_size(expected)} instead of {describe_size(memory.total_bytes)}"
        for remedy, expected in best_first(memory, limit)
    )
