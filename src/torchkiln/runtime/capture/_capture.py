"""Recording a step: the user's forward runs once, on tensors that have shapes but no values."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import Tensor, fx, nn

from torchkiln.core import CaptureError, LossInputs, capture_contexts
from torchkiln.data._structure import Node, paths
from torchkiln.ops._needs import natives_of_graph
from torchkiln.runtime.call._metadata import ProgramMetadata
from torchkiln.runtime.capture._baked_values import baked_values_told
from torchkiln.runtime.capture._dynamic import explain
from torchkiln.runtime.capture._entries import Entries, EntryResult, entry_names
from torchkiln.runtime.capture._replay import replayed_checkpoints
from torchkiln.runtime.capture._step import BACKWARD_CODE, FORWARD_CODE, StepFunction
from torchkiln.runtime.optim._arrangement import Arrangement
from torchkiln.runtime.optim._division import divide
from torchkiln.runtime.optim._tables import empty_tables
from torchkiln.runtime.passes._aggregation import aggregate_natively, natives_of_aggregations
from torchkiln.runtime.passes._checks import check_graph
from torchkiln.runtime.passes._constants import constant_outputs, protect_constant
from torchkiln.runtime.passes._draws import draw_in_order
from torchkiln.runtime.passes._loss_inputs import drop_aliases, read_loss_inputs, take_loss
from torchkiln.runtime.passes._origins import recorded_origins
from torchkiln.runtime.passes._stages import Stages, recorded_stages
from torchkiln.runtime.recompute._choice import Survey, choose_modules
from torchkiln.runtime.recompute._graph import postpone_repeated
from torchkiln.torch_internals._autograd import mkldnn_is_enabled, set_mkldnn_enabled
from torchkiln.torch_internals._fake_tensors import FakeTensorMode, fake_mode
from torchkiln.torch_internals._fx import record_graph
from torchkiln.torch_internals._libraries import checks_arguments
from torchkiln.torch_internals._tensors import version_of

aten = torch.ops.aten


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """One recorded function of flat tensor inputs."""

    graph: fx.GraphModule
    inputs: list[Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class Captured:
    """A whole step as static graphs, with what its caller must know."""

    entries: dict[str, Entry]
    node: Node
    updated: list[str]
    reassigned: list[str]
    mutated_inputs: list[int]
    constant_outputs: list[int]
    recomputed: tuple[str, ...]
    loss_inputs: LossInputs | None
    # Native helpers that the graphs call.
    natives: tuple[str, ...] = ()

    def metadata(self) -> ProgramMetadata:
        """Return what a caller must know about an executable that is made of this."""
        return ProgramMetadata(
            list(self.entries),
            self.node,
            self.updated,
            self.reassigned,
            self.mutated_inputs,
            self.constant_outputs,
            self.loss_inputs,
            list(self.natives),
        )


def recomputed_modules(
    step: StepFunction, batch: list[Tensor], stages: Stages | None = None
) -> tuple[str, ...]:
    """Return the names of the modules that the step recomputes, chosen if the options say so.

    The choice runs forward once more, on tensors that have shapes but no values. A module in which
    another stage of a pipeline begins is not chosen: no stage could repeat all of it.
    """
    wanted = step.options.recompute
    if wanted is None or not step.training:
        return ()
    if not isinstance(wanted, str):
        return wanted
    survey = survey_step(step, batch)
    if stages is not None:
        survey.divided |= stages.divided(call.name for call in survey.calls)
    return choose_modules(survey)


def survey_step(step: StepFunction, batch: list[Tensor]) -> Survey:
    """Return what autograd would keep of a forward on `batch`."""
    mode, tensors, fake_batch = _without_values(step, batch)
    with _static_rules(step.binding.module), mode, _explained():
        return step.survey(tensors, fake_batch)


def _without_values(
    step: StepFunction, batch: list[Tensor]
) -> tuple[FakeTensorMode, list[Tensor], list[Tensor]]:
    """Return stand-ins for the module's tensors and the batch, and the mode they live in."""
    mode = fake_mode()
    own = [bound.tensor for bound in step.binding.parameters]
    own += [bound.tensor.detach() for bound in [*step.binding.buffers, *step.binding.attributes]]
    tensors: list[Tensor] = [mode.from_tensor(tensor) for tensor in own]
    return mode, tensors, [mode.from_tensor(tensor.detach()) for tensor in batch]


@dataclass(frozen=True, slots=True, eq=False)
class _Recorded:
    """The entries of a step as they were recorded, and what the first of them told."""

    entries: dict[str, Entry]
    told: EntryResult

    @property
    def forward(self) -> Entry:
        """The entry that runs forward."""
        return next(iter(self.entries.values()))


def capture(
    step: StepFunction,
    batch: list[Tensor],
    arrangement: Arrangement | None,
    *,
    with_origins: bool = False,
    stages: Stages | None = None,
    prepare: Callable[[set[str]], None] | None = None,
) -> Captured:
    """Record the step for a micro-batch like `batch`.

    Args:
        step: What is recorded.
        batch: With the shapes of its inputs.
        arrangement: Of the parameters that are updated; None: inference.
        with_origins: Let nodes know the module, the line and the phase that recorded them
            (`passes/_origins.py`).
        stages: Let nodes know the stage that they belong to (`passes/_stages.py`).
        prepare: Called with the names of the native helpers that the graphs will need, before a
            pass asks for one of them. None: each is built when it is asked for.

    Raises:
        DynamicShapeError: at the user's line, if something depends on values.
        CaptureError, LossError: if forward cannot be a training step for another reason.
    """
    step = dataclasses.replace(step, recompute=recomputed_modules(step, batch, stages))
    mode, tensors, fake_batch = _without_values(step, batch)
    versions = [version_of(tensor) for tensor in [*tensors, *fake_batch]]
    # What is recomputed must be told from what is computed first when code is generated.
    noted = with_origins or bool(step.recompute)
    origins = (
        recorded_origins(step.binding.module, FORWARD_CODE, BACKWARD_CODE)
        if noted
        else contextlib.nullcontext()
    )
    marks = (
        recorded_stages(step.binding.module, stages, FORWARD_CODE)
        if stages is not None
        else contextlib.nullcontext()
    )
    told = baked_values_told(step.binding.module)
    with told, _static_rules(step.binding.module), mode, _explained(), origins, marks:
        recorded = _record_step(step, tensors, fake_batch, arrangement)
    written = [
        index
        for index, tensor in enumerate([*tensors, *fake_batch])
        if version_of(tensor) != versions[index]
    ]
    captured = _describe(recorded, step, arrangement, written)
    drop_aliases(recorded.forward.graph)
    _protect_attributes(recorded.forward, step, written)
    graphs = [entry.graph for entry in captured.entries.values()]
    for graph in graphs:
        _settle(graph, step, arrangement)
    if prepare is not None:
        prepare(set().union(*(natives_of_graph(g) | natives_of_aggregations(g) for g in graphs)))
    for graph in graphs:
        aggregate_natively(graph)
        graph.recompile()
    natives = set[str]().union(*map(natives_of_graph, graphs))
    return dataclasses.replace(captured, natives=tuple(sorted(natives)))


def _record_step(
    step: StepFunction, tensors: list[Tensor], batch: list[Tensor], arrangement: Arrangement | None
) -> _Recorded:
    if arrangement is None:
        entry, told = _record(Entries(step, None).infer, [*tensors, *batch])
        return _Recorded({"infer": entry}, told)
    if entry_names(step.options, training=True) == ["step"]:
        return _record_fused(step, tensors, batch, arrangement)
    return _record_split(step, tensors, batch, arrangement)


def _describe(
    recorded: _Recorded, step: StepFunction, arrangement: Arrangement | None, written: list[int]
) -> Captured:
    """Put what the recording told into a value; `written` are the inputs that forward writes to."""
    told, count = recorded.told, len(step.binding.bound)
    assert told.node is not None
    names = [] if arrangement is None else arrangement.names
    num_outputs = len(paths(told.node))
    constant = constant_outputs(recorded.forward.graph)
    return Captured(
        entries=recorded.entries,
        node=told.node,
        updated=[names[member] for member in sorted(told.reached)],
        reassigned=list(told.reassigned),
        mutated_inputs=[index - count for index in written if index >= count],
        constant_outputs=[index for index in constant if index < num_outputs],
        recomputed=step.recompute,
        loss_inputs=read_loss_inputs(
            recorded.forward.graph, len(step.signature.forms), told.loss_functions
        ),
    )


def _protect_attributes(forward: Entry, step: StepFunction, written: list[int]) -> None:
    """Let the graph write to copies of plain attributes: they are constants of the program."""
    count = len(step.binding.bound)
    first = count - len(step.binding.attributes)
    placeholders = [node for node in forward.graph.graph.nodes if node.op == "placeholder"]
    for index in written:
        if first <= index < count:
            protect_constant(forward.graph, placeholders[index])
    forward.graph.recompile()


def _settle(graph: fx.GraphModule, step: StepFunction, arrangement: Arrangement | None) -> None:
    """Check a recorded graph, and fix the order of its random numbers, for every backend."""
    if step.recompute:
        postpone_repeated(graph)
    check_graph(graph, None if arrangement is None else arrangement.held)
    draw_in_order(graph)


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        explained = explain(error)
        if explained is None:
            raise
        raise explained from error


def _record_fused(
    step: StepFunction, tensors: list[Tensor], batch: list[Tensor], arrangement: Arrangement
) -> _Recorded:
    entries = Entries(step, arrangement)
    trainable = step.trainable(tensors)
    state = _empty_state(arrangement, [trainable[position] for position in entries.members()])
    flat_state = [tensor for own in state for tensor in own]
    inputs = [*tensors, *flat_state, *empty_tables(arrangement), *batch]
    entry, told = _record(entries.step, inputs)
    # A parameter that the loss does not reach has no optimiser state, as in torch.
    unused: list[int] = []
    start = len(tensors)
    for member, own in enumerate(state):
        if member not in told.reached:
            unused.extend(range(start, start + len(own)))
        start += len(own)
    return _Recorded({"step": _without_inputs(entry, unused)}, told)


def _record_split(
    step: StepFunction, tensors: list[Tensor], batch: list[Tensor], arrangement: Arrangement
) -> _Recorded:
    entries = Entries(step, arrangement)
    trainable = step.trainable(tensors)
    params = [trainable[position].detach() for position in entries.members()]
    sums = [arrangement.empty_sum(param) for param in params]
    tables = empty_tables(arrangement)
    accumulate, told = _record(entries.accumulate, [*tensors, *sums, tables[-1], *batch])
    unused = [len(tensors) + m for m in range(len(sums)) if m not in told.reached]
    used = sorted(told.reached)
    chosen = arrangement.select([arrangement.names[member] for member in used])
    if step.options.num_state_parts > 1:
        update = _record_update_of_parts(step, chosen, tables)
    else:
        update = _record_update(step, chosen, [params[member] for member in used])
    return _Recorded({"accumulate": _without_inputs(accumulate, unused), "update": update}, told)


def _record_update_of_parts(
    step: StepFunction, arrangement: Arrangement, tables: list[Tensor]
) -> Entry:
    """Record what one of several processes does with its parts of everything that is updated."""
    division = divide(arrangement, step.options.num_state_parts)
    of_parts, device = division.of_parts, arrangement.device
    parts = [torch.empty(block.part, dtype=block.dtype, device=device) for block in division.blocks]
    sums = [of_parts.empty_sum(part) for part in parts]
    state = [tensor for own in _empty_state(of_parts, parts) for tensor in own]
    norm = torch.empty((), dtype=torch.float32, device=device)
    inputs = [*parts, *sums, *state, *tables, norm]
    update, _ = _record(Entries(step, of_parts).update_parts, inputs)
    return update


def _record_update(step: StepFunction, chosen: Arrangement, params: list[Tensor]) -> Entry:
    state = [tensor for entry in _empty_state(chosen, params) for tensor in entry]
    sums = [chosen.empty_sum(param) for param in params]
    inputs = [*params, *sums, *state, *empty_tables(chosen)]
    every = functools.partial(Entries(step, chosen).update, reached=range(len(params)))
    update, _ = _record(every, inputs)
    return update


def record_update(step: StepFunction, chosen: Arrangement) -> Entry:
    """Return the update of an arrangement's parameters by itself: those of a part of the model."""
    mode = fake_mode()
    params: list[Tensor] = [mode.from_tensor(param.detach()) for param in chosen.params]
    with _static_rules(step.binding.module), mode, _explained():
        update = _record_update(step, chosen, params)
    check_graph(update.graph, chosen.held)
    update.graph.recompile()
    return update


def _empty_state(arrangement: Arrangement, params: list[Tensor]) -> list[list[Tensor]]:
    return [
        list(arrangement.empty_state(member, param).values()) for member, param in enumerate(params)
    ]


def _record(
    function: Callable[..., EntryResult], inputs: list[Tensor]
) -> tuple[Entry, EntryResult]:
    """Return an entry as a graph, and what its run told beside its tensors."""
    results: list[EntryResult] = []

    def run(*flat: Tensor) -> list[Tensor]:
        results.append(function(*flat))
        loss = results[-1].loss
        return results[-1].outputs if loss is None else [*results[-1].outputs, loss]

    graph = record_graph(run, inputs, _DECOMPOSITIONS)
    if results[-1].loss is not None:
        take_loss(graph)
    # Flat tensors in and out: no tree handling in the generated code.
    graph.graph.set_codegen(fx.graph.CodeGen())
    graph.recompile()
    (told,) = results
    return Entry(graph, [tensor.detach() for tensor in inputs]), told


def _add_without_alpha(a: Any, b: Any, *, alpha: Any = 1) -> Any:
    return NotImplemented if alpha == 1 else a + b * alpha


def _add_in_place_without_alpha(a: Any, b: Any, *, alpha: Any = 1) -> Any:
    return NotImplemented if alpha == 1 else a.add_(b * alpha)


# Inductor (torch 2.13) fuses add(mm, p, alpha=a) into addmm and drops alpha: wrong numbers.
_DECOMPOSITIONS = {
    aten.add.Tensor: _add_without_alpha,
    aten.add_.Tensor: _add_in_place_without_alpha,
}


def _without_inputs(entry: Entry, positions: list[int]) -> Entry:
    """Return the entry without inputs that it does not use."""
    placeholders = [node for node in entry.graph.graph.nodes if node.op == "placeholder"]
    for position in positions:
        assert not placeholders[position].users
        entry.graph.graph.erase_node(placeholders[position])
    entry.graph.recompile()
    unused = set(positions)
    return Entry(entry.graph, [t for i, t in enumerate(entry.inputs) if i not in unused])


@contextlib.contextmanager
def without_fused_recurrence(module: nn.Module) -> Iterator[None]:
    """Keep mkldnn's recurrent kernel out: it has no form that AOTInductor can call."""
    before = mkldnn_is_enabled()
    recurrent = any(isinstance(child, nn.RNNBase) for child in module.modules())
    set_mkldnn_enabled(before and not recurrent)
    try:
        yield
    finally:
        set_mkldnn_enabled(before)


def _refuse_seeding(seed: int) -> None:
    raise CaptureError(
        f"torch.manual_seed({seed}) inside forward happens once, while the program is recorded; "
        "seed before calling the program"
    )


@contextlib.contextmanager
def _static_rules(module: nn.Module) -> Iterator[None]:
    """Switch on what makes libraries refuse, rather than guess, sizes that depend on data."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(without_fused_recurrence(module))
        stack.enter_context(replayed_checkpoints())
        stack.enter_context(mock.patch.object(torch, "manual_seed", _refuse_seeding))
        distributions = sys.modules.get("torch.distributions")
        if distributions is not None:
            # Their checks of arguments read values.
            kind = distributions.Distribution
            stack.callback(kind.set_default_validate_args, checks_arguments(kind))
            kind.set_default_validate_args(False)
        for context in capture_contexts():
            stack.enter_context(context(module))
        yield
