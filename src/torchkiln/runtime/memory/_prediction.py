"""Predicting the memory of a step: what stays between steps, and the peak of the step itself."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, fx

from torchkiln.core import Backend, Options, OutputMode
from torchkiln.runtime.capture._capture import Captured, survey_step
from torchkiln.runtime.capture._step import StepFunction
from torchkiln.runtime.memory._graph import plan_graph
from torchkiln.runtime.memory._inductor import plan_native
from torchkiln.runtime.memory._report import MemoryReport, ModuleMemory
from torchkiln.runtime.memory._timeline import Timeline
from torchkiln.runtime.optim._arrangement import Arrangement
from torchkiln.runtime.optim._state_dtypes import SUMS
from torchkiln.runtime.passes._origins import origins_of
from torchkiln.runtime.recompute._choice import choose_modules
from torchkiln.torch_internals._tensors import storage_key


def add_up(
    step: StepFunction,
    batch: list[Tensor],
    micro_batch: list[Tensor],
    arrangement: Arrangement | None,
    captured: Captured,
    outputs: int,
    timelines: dict[str, Timeline],
) -> MemoryReport:
    """Return the memory of a step whose entries are planned, with what stays between steps.

    Args:
        step: The step.
        batch: The arguments of a call.
        micro_batch: Those of one micro-batch.
        arrangement: Of the parameters that are updated.
        captured: The recorded step; of its graphs nothing is read.
        outputs: Bytes that a micro-batch returns.
        timelines: Memory over the calls of each entry.
    """
    timeline = worst_of(timelines)
    state = state_bytes(arrangement, captured.updated, step.options.num_state_parts)
    sums = sum_bytes(arrangement, captured.updated)
    turn = timeline.turn()
    saved = sum(b.size_bytes for b in timeline.peak if timeline.is_saved(b, turn))
    gradients = sum(
        b.size_bytes
        for b in timeline.peak
        if timeline.is_gradient(b) and not timeline.is_saved(b, turn)
    )
    return MemoryReport(
        parameter_bytes=_bytes(step.binding.tensors),
        optimizer_bytes=sum(state.values()),
        gradient_bytes=gradients
        + (sum(sums.values()) if step.options.total_micro_batches_per_update > 1 else 0),
        batch_bytes=_bytes(batch),
        saved_bytes=saved,
        temporary_bytes=timeline.peak_bytes - saved - gradients,
        output_bytes=outputs * _num_kept_elsewhere(step.options),
        peak_phase=timeline.peak_origin.phase.value,
        peak_module=timeline.peak_origin.module,
        modules=_modules(step, state, sums, timeline),
        recomputed=captured.recomputed,
        recomputable_bytes=0
        if captured.recomputed
        else _recomputable_bytes(step, micro_batch, saved),
        micro_batch_size=max((t.shape[0] for t in micro_batch if t.dim()), default=1),
        backend=step.options.backend,
        training=step.training,
    )


def worst_of(timelines: dict[str, Timeline]) -> Timeline:
    """Return the entry that needs most memory."""
    return max(timelines.values(), key=lambda entry: entry.peak_bytes)


def plan_entries(captured: Captured, step: StepFunction) -> dict[str, Timeline]:
    """Return the memory of each entry over its calls; graphs for native code are used up."""
    timelines = {}
    for name, entry in captured.entries.items():
        origins = origins_of(entry.graph)
        if step.options.backend is Backend.INDUCTOR:
            recomputes = bool(captured.recomputed)
            plan = plan_native(entry, step.binding.module, recomputes)
        else:
            plan = plan_graph(entry)
        timelines[name] = Timeline(plan, origins)
    return timelines


def _bytes(tensors: Iterable[Tensor]) -> int:
    """Return the memory behind tensors, what they share once."""
    sizes = {storage_key(tensor): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(sizes.values())


def state_bytes(
    arrangement: Arrangement | None, updated: list[str], num_parts: int = 1
) -> dict[str, int]:
    """Return the bytes of this process' part of the optimiser's state by parameter."""
    if arrangement is None:
        return {}
    dtypes = arrangement.recipe.state_dtypes
    return {
        name: sum(
            -(-param.numel() // num_parts) * dtypes.of(key, param).itemsize
            for key in arrangement.rule(member).state_names
        )
        for member, (name, param) in enumerate(
            zip(arrangement.names, arrangement.params, strict=True)
        )
        if name in set(updated)
    }


def sum_bytes(arrangement: Arrangement | None, updated: list[str]) -> dict[str, int]:
    """Return the bytes that the sum of a parameter's gradients takes, if they are accumulated."""
    if arrangement is None:
        return {}
    dtypes = arrangement.recipe.state_dtypes
    return {
        name: param.numel() * dtypes.of(SUMS, param).itemsize
        for name, param in zip(arrangement.names, arrangement.params, strict=True)
        if name in set(updated)
    }


def output_bytes(captured: Captured) -> int:
    """Return the bytes that a micro-batch returns."""
    entry = next(iter(captured.entries.values()))
    (outputs,) = entry.graph.graph.output_node().args
    assert isinstance(outputs, list | tuple)
    return sum(node.meta["val"].nbytes for node in outputs if isinstance(node, fx.Node))


def _num_kept_elsewhere(options: Options) -> int:
    """Return how many micro-batches' outputs are alive beside the present one's.

    Outputs that a call collects are held one by one, and once more when they are put together.
    """
    count = options.device_iterations * options.micro_batches_per_update
    if count == 1:
        return 0
    if options.output_mode is OutputMode.EVERY_N:
        count //= options.output_period
    elif options.output_mode is not OutputMode.ALL:
        count = options.replication_factor
    return 2 * count - 1


def _modules(
    step: StepFunction, state: dict[str, int], sums: dict[str, int], timeline: Timeline
) -> dict[str, ModuleMemory]:
    parameters: dict[str, int] = {}
    accumulated: dict[str, int] = {}
    states: dict[str, int] = {}
    saved: dict[str, int] = {}
    for bound in step.binding.bound:
        module = bound.name.rpartition(".")[0]
        parameters[module] = parameters.get(module, 0) + bound.tensor.nbytes
        accumulated[module] = accumulated.get(module, 0) + sums.get(bound.name, 0)
        states[module] = states.get(module, 0) + state.get(bound.name, 0)
    turn = timeline.turn()
    for block in timeline.peak:
        if timeline.is_saved(block, turn) or not step.training:
            module = timeline.origin(block).module
            saved[module] = saved.get(module, 0) + block.size_bytes
    return {
        name: ModuleMemory(
            *(part.get(name, 0) for part in (parameters, accumulated, states, saved))
        )
        for name in [name for name, _ in step.binding.module.named_modules()]
        if name in parameters or name in saved
    }


def _recomputable_bytes(step: StepFunction, micro_batch: list[Tensor], saved_bytes: int) -> int:
    """Estimate what recomputation would save, by the share that autograd would keep less."""
    if not step.training:
        return 0
    survey = survey_step(step, micro_batch)
    before = survey.peak_bytes(set())
    if not before:
        return 0
    after = survey.peak_bytes(set(choose_modules(survey)))
    return int(saved_bytes * (1 - after / before))
