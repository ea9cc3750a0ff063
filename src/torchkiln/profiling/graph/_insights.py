"""What holds a step up, what to change, and how much that is expected to give.

Each rule looks at one cause and returns an insight, or None where it does not matter. Promises are
kept small: `benchmarks/profiling_insights.py` applies the remedies and compares.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import torch

from torchkiln.core import Options
from torchkiln.core._other_processes import OtherLoad
from torchkiln.profiling.graph._values import Call, GraphProfile, Insight, Times
from torchkiln.report._memory_verdict import best_first, describe_size
from torchkiln.runtime import MemoryReport
from torchkiln.runtime.execute._precision import is_fast

# Below this share of the time, a cause is not worth a sentence.
_WORTH_TELLING = 0.05
# Python around the executable is said to bound a step from this share on.
_OUTSIDE = 0.15
# A call that reaches this share of the machine's peak is bound by it.
_NEAR_PEAK = 0.5
# Calls shorter than this are mostly the cost of being called.
_SHORT_US = 3.0
# From this share of the free memory on, memory is a matter.
_MUCH_MEMORY = 0.6
_OTHERS_CORES = 0.25
# From this share of a wait on, it is no lack of cores that makes data slow.
_MOSTLY_SLEEPING = 0.5
_MOST_WORKERS = 8
# What overlapping leaves of a gain: it is never perfect.
_KEPT = 0.75
# What grouping leaves: every step of a group still hands its tensors over, and a profile itself
# makes calls a few microseconds longer.
_KEPT_IN_GROUPS = 0.4


@dataclass(frozen=True, slots=True)
class _Seen:
    profile: GraphProfile
    times: Times
    memory: MemoryReport
    options: Options
    others: OtherLoad | None
    sleeping: float | None


def find_insights(
    profile: GraphProfile,
    memory: MemoryReport,
    options: Options,
    others: OtherLoad | None,
    *,
    sleeping: float | None = None,
) -> tuple[Insight, ...]:
    """Return what to change, the largest gain of time first.

    Args:
        profile: What was measured; without times only memory is looked at.
        memory: What the program needs.
        options: Of the program.
        others: What other processes did meanwhile.
        sleeping: Which share of the time between calls went by without computing; None if the
            caller's loop was not seen.
    """
    found: list[Insight | None] = [_memory(profile, memory)]
    if profile.times is not None:
        seen = _Seen(profile, profile.times, memory, options, others, sleeping)
        found += [rule(seen) for rule in _RULES]
    kept = [insight for insight in found if insight is not None]
    return tuple(sorted(kept, key=lambda insight: -(insight.gain_us or 0.0)))


def _waiting(seen: _Seen) -> Insight | None:
    waiting, loop = seen.times.waiting_us or 0.0, seen.times.loop_us
    if waiting < _WORTH_TELLING * loop:
        return None
    # Data can be made ready while a step runs, but not faster than it takes to make it.
    hidden = min(waiting, seen.times.step_us) * _KEPT
    text = (
        f"The program waits {waiting:,.0f} us for data before each step, {waiting / loop:.0%} of "
        f"the time of the loop. A step itself takes {seen.times.step_us:,.0f} us."
    )
    workers = 1
    crowded = seen.others is not None and seen.others.is_high
    if not crowded and seen.sleeping is not None and seen.sleeping > _MOSTLY_SLEEPING:
        # Who sleeps needs no core, so several can do so at once.
        workers = min(max(1, math.ceil(waiting / seen.times.step_us)), _MOST_WORKERS)
        text += (
            f" {seen.sleeping:.0%} of it goes by without computing: a disk, a network or another "
            "process is waited for."
        )
    return Insight(
        "data",
        "Waiting for data",
        text,
        f"Prepare batches while steps run: DataLoader(..., num_workers={workers}), or more workers "
        "if that is not fast enough and cores are free; mode=DataLoaderMode.Async in PopTorch "
        "programs.",
        gain_us=hidden,
    )


def _loop(seen: _Seen) -> Insight | None:
    other, loop = seen.times.other_us or 0.0, seen.times.loop_us
    if other < 2 * _WORTH_TELLING * loop:
        return None
    return Insight(
        "loop",
        "Work between the steps",
        f"Between two calls of the program, {other:,.0f} us a step ({other / loop:.0%} of the "
        "loop) go into something else than the program and waiting for Torchkiln's loaders: "
        "another loader, printing, logging, copying results.",
        "Look at what the loop does between two calls. The system profile shows it on a time "
        'line: PVTI_OPTIONS=\'{"enable":"true"}\', and torchkiln.core.span around suspects.',
    )


def _outside(seen: _Seen) -> Insight | None:
    outside, step = seen.times.outside_us, seen.times.step_us
    if outside < _OUTSIDE * step:
        return None
    per_call = seen.profile.steps_per_call
    if per_call > 1:
        return None
    # As many as make it small, but no more data a call than people have.
    grouped = min(max(4, math.ceil(outside / (_WORTH_TELLING * step))), 32)
    return Insight(
        "python",
        "Python around a short step",
        f"{outside:,.0f} us of each step ({outside / step:.0%}) pass outside the executable: "
        "checking arguments, handing tensors over, putting results together. That is the same "
        "for every call, however much it computes.",
        f"Run several steps in one call: Options(device_iterations={grouped}), with a loader that "
        "hands over as many batches at once (Torchkiln's loaders do so when they are given these "
        "options).",
        gain_us=outside * (1 - 1 / grouped) * _KEPT_IN_GROUPS,
    )


def _other_processes(seen: _Seen) -> Insight | None:
    others = seen.others
    if others is None or others.used < _OTHERS_CORES:
        return None
    threads = torch.get_num_threads()
    # A step waits for its slowest thread: it suffers where there is no core left for others.
    wanted = min(threads, others.cores)
    missing = max(wanted + others.used - others.cores, 0.0)
    if missing < _WORTH_TELLING:
        return None
    share = missing / (wanted + missing)
    return Insight(
        "other-processes",
        "Other processes on the same cores",
        f"While this was measured, {others}. The step computes with {threads} threads, which had "
        "to share.",
        "End the other processes, or give this one fewer threads and cores of its own "
        "(OMP_NUM_THREADS, taskset).",
        gain_us=seen.times.step_us * share * _KEPT,
    )


def _arithmetic(seen: _Seen) -> Insight | None:
    return _bound(
        seen,
        "compute-bound",
        "Arithmetic",
        lambda call: call.flops,
        seen.profile.peaks.gflops_per_s if seen.profile.peaks else 0.0,
        "GFLOP/s",
        _LOWER_PRECISION if is_fast(torch.bfloat16) else
        "The step is near what this processor can compute. Fewer or smaller layers, or more "
        "cores, are what is left; bfloat16 gains nothing here, the processor has no instructions "
        "for it.",
    )  # fmt: skip


def _bandwidth(seen: _Seen) -> Insight | None:
    return _bound(
        seen,
        "memory-bound",
        "Moving memory",
        lambda call: call.bytes_read + call.bytes_written,
        seen.profile.peaks.gbytes_per_s if seen.profile.peaks else 0.0,
        "GB/s",
        "These calls move data as fast as the memory can. Smaller micro-batches that stay in the "
        "caches (with gradient_accumulation for the same update), or narrower dtypes, move less.",
    )


_LOWER_PRECISION = (
    'Options(precision="bfloat16") lets matrix products run in 16 bits, for which this processor '
    "has instructions; compare the losses of both."
)


def _bound(
    seen: _Seen,
    kind: str,
    title: str,
    amount: Callable[[Call], int],
    peak: float,
    unit: str,
    remedy: str,
) -> Insight | None:
    """Tell which share of the time is spent in calls that are near a peak of the machine."""
    near = []
    for call in seen.profile.calls:
        if call.us and peak and amount(call) * call.runs / call.us / 1e3 >= _NEAR_PEAK * peak:
            near.append(call)
    inside = seen.times.executable_us
    spent = sum(call.us or 0.0 for call in near)
    if not inside or spent < 0.25 * inside:
        return None
    reached = sum(amount(call) * call.runs for call in near) / spent / 1e3
    slowest = max(near, key=lambda call: call.us or 0.0)
    return Insight(
        kind,
        title,
        f"{spent / inside:.0%} of the executable's time is in {len(near)} calls that reach "
        f"{reached:,.0f} of the {peak:,.0f} {unit} that this machine was measured to give. The "
        f"longest is {slowest.kernel} with {slowest.us or 0.0:,.0f} us.",
        remedy,
    )


def _short_calls(seen: _Seen) -> Insight | None:
    short = [call for call in seen.profile.calls if call.us and call.us / call.runs < _SHORT_US]
    spent = sum(call.us or 0.0 for call in short)
    step = seen.times.step_us
    if spent < 0.25 * step:
        return None
    return Insight(
        "short-calls",
        "Many short calls",
        f"{len(short)} of {len(seen.profile.calls)} calls take less than {_SHORT_US:.0f} us each, "
        f"together {spent / step:.0%} of the step: the cost of a call is much of that.",
        "Larger micro-batches do more in each call; fewer, wider layers make fewer calls.",
    )


def _hot_line(seen: _Seen) -> Insight | None:
    spent: dict[int, float] = defaultdict(float)
    for row in seen.profile.rows:
        if row.line is not None:
            spent[row.line] += row.us or 0.0
    if not spent:
        return None
    index = max(spent, key=lambda line: spent[line])
    share = spent[index] / seen.times.step_us
    if share < 0.3:
        return None
    line = seen.profile.lines[index]
    return Insight(
        "hot-line",
        "One line takes most of the time",
        f"{line} ({line.code}) takes {spent[index]:,.0f} us of each step, {share:.0%}, forward "
        "and backward together.",
        "Look at this line first.",
    )


def _memory(profile: GraphProfile, memory: MemoryReport) -> Insight | None:
    liveness = profile.liveness
    if liveness is None or liveness.total_bytes < _MUCH_MEMORY * liveness.machine_bytes:
        return None
    share = liveness.total_bytes / max(liveness.machine_bytes, 1)
    if not liveness.fits:
        remedy, expected = best_first(memory, liveness.machine_bytes)[0]
        gain = memory.total_bytes - expected
    elif memory.recomputable_bytes > _WORTH_TELLING * memory.total_bytes:
        remedy, gain = 'Options(recompute="auto")', memory.recomputable_bytes
    elif memory.micro_batch_size > 1:
        half = memory.micro_batch_size // 2
        remedy = f"micro-batches of {half} rows instead of {memory.micro_batch_size}"
        if memory.training:
            remedy += ", with gradient_accumulation=2 for the same weight update"
        gain = memory.step_bytes // 2
    else:
        remedy, gain = 'Options(precision="bfloat16")', memory.saved_bytes // 2
    return Insight(
        "memory",
        "Memory" if share <= 1 else "The step does not fit into the memory",
        f"At its peak the program needs {describe_size(liveness.total_bytes)}, {share:.0%} of the "
        f"{describe_size(liveness.machine_bytes)} that are free here.",
        remedy,
        gain_bytes=gain,
    )


_RULES: tuple[Callable[[_Seen], Insight | None], ...] = (
    _waiting,
    _loop,
    _outside,
    _other_processes,
    _arithmetic,
    _bandwidth,
    _short_calls,
    _hot_line,
)
