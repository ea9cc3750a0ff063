"""The pieces that a forward can be cut into, with the time and the memory of each."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import Tensor, fx

from torchkiln.core import CaptureError
from torchkiln.runtime.capture._capture import Captured, capture, recomputed_modules, survey_step
from torchkiln.runtime.capture._step import StepFunction
from torchkiln.runtime.memory._prediction import state_bytes, sum_bytes
from torchkiln.runtime.optim._arrangement import Arrangement
from torchkiln.runtime.passes._costs import flops_of, is_view
from torchkiln.runtime.passes._origins import Phase, origin
from torchkiln.runtime.passes._stages import Stages, mark_of
from torchkiln.runtime.pipeline._memory import Memory
from torchkiln.torch_internals._fx import tensors_in

# What a core of today does in a second, more or less: only the ratio of the two matters.
_FLOPS = 4e10
_BYTES = 1e10
# A module that takes a larger share of a stage's time than this is looked into.
_SHARE = 0.25


@dataclass(slots=True)
class Segment:
    """What runs from the call of a module to the call of the next one.

    Args:
        module: Its name.
        seconds: Estimated time of forward and backward.
        kept_bytes: What backward needs of it.
        fixed_bytes: Weights that it uses, with their sums of gradients and optimiser state.
        can_begin: Whether a stage can begin with it.
    """

    module: str
    seconds: float = 0.0
    kept_bytes: int = 0
    fixed_bytes: int = 0
    can_begin: bool = True


def find_segments(
    step: StepFunction,
    micro_batch: list[Tensor],
    arrangement: Arrangement | None,
    num_stages: int,
    measured: Mapping[str, float] | None = None,
) -> list[Segment]:
    """Return the segments of a step in order; modules that take long are divided further.

    Args:
        step: Recorded as it is for several micro-batches an update.
        micro_batch: With the shapes of its inputs.
        arrangement: Of the parameters that are updated; None: inference.
        num_stages: How many stages there shall be.
        measured: Time of each module without those inside it, in any unit; None: estimated from
            operations and bytes.
    """
    names = recomputed_modules(step, micro_batch)
    # A choice that the stages were known for might leave every module out that is looked at here.
    step = dataclasses.replace(step, options=step.options.replace(recompute=list(names) or None))
    survey = survey_step(step, micro_batch)
    called = [call.name for call in survey.calls]
    once = [
        name for name in called if called.count(name) == 1 and name and not _is_inside(name, names)
    ]
    fine, captured = _record(step, micro_batch, arrangement, once)
    segments = _weigh(captured, step, arrangement, fine, measured)
    total = sum(segment.seconds for segment in segments)
    chosen = _divide(segments, survey.children, _SHARE * total / num_stages)
    return _merge(segments, chosen)


def _is_inside(name: str, others: Iterable[str]) -> bool:
    return any(not other or name.startswith(f"{other}.") for other in others)


def _record(
    step: StepFunction,
    micro_batch: list[Tensor],
    arrangement: Arrangement | None,
    names: list[str],
) -> tuple[list[str], Captured]:
    """Record a step with a stage for every module; with fewer, where forward does not allow it."""
    for depth in (None, 3, 2, 1):
        fine = ["", *(n for n in names if depth is None or n.count(".") < depth)]
        stages = Stages(tuple((name,) for name in fine))
        try:
            return fine, capture(step, micro_batch, arrangement, with_origins=True, stages=stages)
        except CaptureError:
            # Part of it is inside torch.utils.checkpoint.
            if depth == 1:
                raise
    raise AssertionError


def _weigh(
    captured: Captured,
    step: StepFunction,
    arrangement: Arrangement | None,
    names: list[str],
    measured: Mapping[str, float] | None,
) -> list[Segment]:
    entry = next(iter(captured.entries.values()))
    memory = Memory(entry.graph)
    segments = [Segment(name) for name in names]
    estimated: dict[str, float] = {}
    works: list[tuple[int, str, float]] = []
    kept: set[fx.Node] = set()
    for node in memory.nodes:
        mark = mark_of(node)
        if mark is None or mark.phase is Phase.UPDATE:
            continue
        module, seconds = origin(node).module, _seconds(node)
        estimated[module] = estimated.get(module, 0.0) + seconds
        works.append((mark.stage, module, seconds))
        for parent in node.all_input_nodes if mark.phase is Phase.BACKWARD else ():
            root = memory.root(parent)
            made = mark_of(root)
            if made is not None and made.phase is Phase.FORWARD and root not in kept:
                kept.add(root)
                segments[made.stage].kept_bytes += _bytes(root)
    for stage, module, seconds in works:
        scale = 1.0
        if measured is not None:
            scale = measured.get(module, 0.0) / (estimated[module] or 1.0)
        segments[stage].seconds += seconds * scale
    _add_weights(segments, memory, captured, step, arrangement)
    return segments


def _add_weights(
    segments: list[Segment],
    memory: Memory,
    captured: Captured,
    step: StepFunction,
    arrangement: Arrangement | None,
) -> None:
    """Add the memory of weights, and forbid to cut between two users of one of them."""
    sums, state = (
        sum_bytes(arrangement, captured.updated),
        state_bytes(arrangement, captured.updated),
    )
    bound = step.binding.bound
    users: dict[fx.Node, list[int]] = {}
    for node in memory.nodes:
        mark = mark_of(node)
        if mark is None or mark.phase is not Phase.FORWARD or memory.is_view(node):
            continue
        for root in {memory.root(parent) for parent in node.all_input_nodes}:
            users.setdefault(root, []).append(mark.stage)
    for placeholder, one in zip(memory.nodes, bound, strict=False):
        stages = users.get(placeholder)
        if not stages:
            continue
        size = one.tensor.nbytes + sums.get(one.name, 0) + state.get(one.name, 0)
        segments[min(stages)].fixed_bytes += size
        if one.name in captured.updated or memory.writers(placeholder):
            for between in segments[min(stages) + 1 : max(stages) + 1]:
                between.can_begin = False


def _seconds(node: fx.Node) -> float:
    if node.op != "call_function" or is_view(node):
        return 0.0
    moved = _bytes(node) + sum(_bytes(parent) for parent in node.all_input_nodes)
    return max(flops_of(node) / _FLOPS, moved / _BYTES)


def _bytes(node: fx.Node) -> int:
    return sum(tensor.nbytes for tensor in tensors_in(node.meta.get("val")))


def _divide(
    segments: list[Segment], children: Mapping[str, list[str]], longest: float
) -> list[str]:
    """Return the modules to begin at: outer ones, and the parts of those that take long."""
    order = [segment.module for segment in segments]

    def time_of(name: str) -> float:
        inside = {name, *_below(name, children)}
        return sum(segment.seconds for segment in segments if segment.module in inside)

    chosen: set[str] = set()
    waiting = [""]
    while waiting:
        name = waiting.pop()
        for child in children.get(name, ()):
            chosen.add(child)
            if child not in order or time_of(child) > longest:
                waiting.append(child)
    return [name for name in order if name in chosen]


def _below(name: str, children: Mapping[str, list[str]]) -> set[str]:
    found: set[str] = set()
    waiting = [name]
    while waiting:
        for child in children.get(waiting.pop(), ()):
            if child not in found:
                found.add(child)
                waiting.append(child)
    return found


def _merge(segments: list[Segment], chosen: list[str]) -> list[Segment]:
    """Return segments that begin at the chosen modules; the first has what comes before, too."""
    merged: list[Segment] = []
    for segment in segments:
        if segment.module in chosen[1:] or not merged:
            merged.append(dataclasses.replace(segment))
            continue
        last = merged[-1]
        last.seconds += segment.seconds
        last.kept_bytes += segment.kept_bytes
        last.fixed_bytes += segment.fixed_bytes
    if chosen:
        merged[0].module = chosen[0]
    return merged
