"""Recording a step: the user's forward runs once, on tensors that have shapes but no values."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from torch import Tensor, fx, nn

from torchkiln.core import CaptureError, capture_contexts
from torchkiln.data._structure import Node, paths
from torchkiln.runtime.capture._dynamic import explain
from torchkiln.runtime.capture._entries import Entries
from torchkiln.runtime.capture._replay import replayed_checkpoints
from torchkiln.runtime.capture._step import StepFunction
from torchkiln.runtime.optim._optimizers import OptimizerBinding
from torchkiln.runtime.passes._aggregation import aggregate_natively
from torchkiln.runtime.passes._checks import check_graph
from torchkiln.runtime.passes._draws import (
    constant_outputs,
    draw_in_order,
    protect_constant,
)
from torchkiln.runtime.passes._origins import recorded_origins
from torchkiln.runtime.recompute._choice import Survey, choose_modules
from torchkiln.runtime.recompute._graph import postpone_repeated
from torchkiln.torch_internals._autograd import mkldnn_is_enabled, set_mkldnn_enabled
from torchkiln.torch_internals._fake_tensors import FakeTensorMode, fake_mode
from torchkiln.torch_internals._fx import record_graph
from torchkiln.torch_internals._libraries import checks_arguments
from torchkiln.torch_internals._tensors import version_of

aten = torch.ops.aten


@dataclass(slots=True)
class Entry:
    """One recorded function of flat tensor inputs."""

    graph: fx.GraphModule
    inputs: list[Tensor]


@dataclass(slots=True)
class Captured:
    """A whole step as static graphs, with what its caller must know."""

    entries: dict[str, Entry]
    node: Node
    updated: list[str] = field(default_factory=list)
    reassigned: list[str] = field(default_factory=list)
    mutated_inputs: list[int] = field(default_factory=list)
    constant_outputs: list[int] = field(default_factory=list)
    recomputed: tuple[str, ...] = ()


def recomputed_modules(step: StepFunction, batch: list[Tensor]) -> tuple[str, ...]:
    """Return the names of the modules that the step recomputes, chosen if the options say so.

    The choice runs forward once more, on tensors that have shapes but no values.
    """
    wanted = step.options.recompute
    if wanted is None or not step.training:
        return ()
    if not isinstance(wanted, str):
        return wanted
    return choose_modules(survey_step(step, batch))


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
    own = [slot.tensor for slot in step.binding.parameters]
    own += [slot.tensor.detach() for slot in [*step.binding.buffers, *step.binding.attributes]]
    tensors: list[Tensor] = [mode.from_tensor(tensor) for tensor in own]
    return mode, tensors, [mode.from_tensor(tensor.detach()) for tensor in batch]


def capture(
    step: StepFunction,
    batch: list[Tensor],
    optimizer: OptimizerBinding | None,
    *,
    with_origins: bool = False,
) -> Captured:
    """Record the step for a micro-batch like `batch`.

    With origins, nodes know the module and the phase that recorded them (`passes/_origins.py`).

    Raises:
        DynamicShapeError: at the user's line, if something depends on values.
        CaptureError, LossError: if forward cannot be a training step for another reason.
    """
    step.recompute = recomputed_modules(step, batch)
    mode, tensors, fake_batch = _without_values(step, batch)
    versions = [version_of(tensor) for tensor in [*tensors, *fake_batch]]
    # What is recomputed must be told from what is computed first when code is generated.
    noted = with_origins or bool(step.recompute)
    origins = recorded_origins(step.binding.module) if noted else contextlib.nullcontext()
    with _static_rules(step.binding.module), mode, _explained(), origins:
        if optimizer is None:
            captured = _capture_inference(step, tensors, fake_batch)
        elif step.options.micro_batches_per_update == 1:
            captured = _capture_fused(step, tensors, fake_batch, optimizer)
        else:
            captured = _capture_split(step, tensors, fake_batch, optimizer)
    captured.recomputed = step.recompute
    changed = [
        index
        for index, tensor in enumerate([*tensors, *fake_batch])
        if version_of(tensor) != versions[index]
    ]
    _finish(captured, step, changed)
    trained = None
    if optimizer is not None:
        groups = optimizer.optimizer.param_groups
        trained = {id(param) for group in groups for param in group["params"]}
    for entry in captured.entries.values():
        if step.recompute:
            postpone_repeated(entry.graph)
        check_graph(entry.graph, trained)
        draw_in_order(entry.graph)
        aggregate_natively(entry.graph)
        entry.graph.recompile()
    return captured


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        explained = explain(error)
        if explained is None:
            raise
        raise explained from error


def _capture_inference(step: StepFunction, tensors: list[Tensor], batch: list[Tensor]) -> Captured:
    entry = _record(Entries(step, None).infer, [*tensors, *batch])
    assert step.node is not None
    return Captured({"infer": entry}, step.node)


def _capture_fused(
    step: StepFunction, tensors: list[Tensor], batch: list[Tensor], optimizer: OptimizerBinding
) -> Captured:
    entries = Entries(step, optimizer)
    trainable = step.trainable(tensors)
    state = _empty_state(optimizer, [trainable[position] for position in entries.members()])
    flat_state = [tensor for own in state for tensor in own]
    tables = _empty_tables(optimizer)
    entry = _record(entries.step, [*tensors, *flat_state, *tables, *batch])
    # A parameter that the loss does not reach has no optimiser state, as in torch.
    unused: list[int] = []
    start = len(tensors)
    for member, own in enumerate(state):
        if member not in entries.with_gradient:
            unused.extend(range(start, start + len(own)))
        start += len(own)
    _drop_inputs(entry, unused)
    return _training_result({"step": entry}, step, optimizer, entries)


def _capture_split(
    step: StepFunction, tensors: list[Tensor], batch: list[Tensor], optimizer: OptimizerBinding
) -> Captured:
    entries = Entries(step, optimizer)
    trainable = step.trainable(tensors)
    params = [trainable[position].detach() for position in entries.members()]
    sums = [optimizer.empty_sum(param) for param in params]
    tables = _empty_tables(optimizer)
    accumulate = _record(entries.accumulate, [*tensors, *sums, tables[-1], *batch])
    used = sorted(entries.with_gradient)
    _drop_inputs(
        accumulate, [len(tensors) + m for m in range(len(sums)) if m not in entries.with_gradient]
    )
    chosen = optimizer.select([optimizer.names[member] for member in used])
    updates = Entries(step, chosen)
    updates.with_gradient.update(range(len(used)))
    own = [params[member] for member in used]
    state = [tensor for entry in _empty_state(chosen, own) for tensor in entry]
    inputs = [*own, *(chosen.empty_sum(param) for param in own), *state, *tables]
    update = _record(updates.update, inputs)
    return _training_result({"accumulate": accumulate, "update": update}, step, optimizer, entries)


def _training_result(
    graphs: dict[str, Entry], step: StepFunction, optimizer: OptimizerBinding, entries: Entries
) -> Captured:
    assert step.node is not None
    return Captured(graphs, step.node, [optimizer.names[m] for m in sorted(entries.with_gradient)])


def _empty_state(optimizer: OptimizerBinding, params: list[Tensor]) -> list[list[Tensor]]:
    return [
        list(optimizer.empty_state(member, param).values()) for member, param in enumerate(params)
    ]


def _empty_tables(optimizer: OptimizerBinding) -> list[Tensor]:
    return [
        torch.empty(table.shape, dtype=table.dtype, device=table.device)
        for table in optimizer.next_hyper(1)[0]
    ]


def _record(function: Callable[..., list[Tensor]], inputs: list[Tensor]) -> Entry:
    graph = record_graph(function, inputs, _DECOMPOSITIONS)
    # Flat tensors in and out: no tree handling in the generated code.
    graph.graph.set_codegen(fx.graph.CodeGen())
    graph.recompile()
    return Entry(graph, [tensor.detach() for tensor in inputs])


def _add_without_alpha(a: Any, b: Any, *, alpha: Any = 1) -> Any:
    return NotImplemented if alpha == 1 else a + b * alpha


def _add_in_place_without_alpha(a: Any, b: Any, *, alpha: Any = 1) -> Any:
    return NotImplemented if alpha == 1 else a.add_(b * alpha)


# Inductor (torch 2.13) fuses add(mm, p, alpha=a) into addmm and drops alpha: wrong numbers.
_DECOMPOSITIONS = {
    aten.add.Tensor: _add_without_alpha,
    aten.add_.Tensor: _add_in_place_without_alpha,
}


def _drop_inputs(entry: Entry, positions: list[int]) -> None:
    placeholders = [node for node in entry.graph.graph.nodes if node.op == "placeholder"]
    for position in positions:
        assert not placeholders[position].users
        entry.graph.graph.erase_node(placeholders[position])
    entry.inputs = [t for i, t in enumerate(entry.inputs) if i not in set(positions)]
    entry.graph.recompile()


def _finish(captured: Captured, step: StepFunction, changed: list[int]) -> None:
    """Note inputs that forward writes to, and protect plain attributes from being written."""
    captured.reassigned = step.reassigned
    count = len(step.binding.slots)
    first_attribute = count - len(step.binding.attributes)
    captured.mutated_inputs = [index - count for index in changed if index >= count]
    entry = next(iter(captured.entries.values()))
    captured.constant_outputs = [
        index for index in constant_outputs(entry.graph) if index < len(paths(captured.node))
    ]
    placeholders = [node for node in entry.graph.graph.nodes if node.op == "placeholder"]
    for index in changed:
        if first_attribute <= index < count:
            # A plain attribute is a constant of the program.
            protect_constant(entry.graph, placeholders[index])
    entry.graph.recompile()


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
