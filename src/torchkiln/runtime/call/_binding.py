"""A module's tensors as a list: parameters, buffers and plain tensor attributes, by place.

The program never copies weights. `Binding` remembers where each tensor lives, lets capture put
stand-ins there for the time of one forward, and tells when the user replaced one.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from torchkiln.core import CaptureError, ExecutableError
from torchkiln.data import flatten, rebuild
from torchkiln.torch_internals._modules import (
    BUFFERS,
    MODULES,
    PARAMETERS,
    buffers_of,
    parameters_of,
)


@dataclass(slots=True)
class TensorPlace:
    """One entry of a module's dictionary that holds a tensor."""

    name: str
    holder: dict[str, Any]
    key: str


@dataclass(slots=True)
class BoundTensor:
    """One tensor and all the places that hold it (several for tied weights)."""

    tensor: Tensor
    places: list[TensorPlace]

    @property
    def name(self) -> str:
        return self.places[0].name


@dataclass(slots=True)
class Binding:
    """All tensors that forward can see through the module."""

    module: nn.Module
    parameters: list[BoundTensor] = field(default_factory=list)
    buffers: list[BoundTensor] = field(default_factory=list)
    attributes: list[BoundTensor] = field(default_factory=list)
    # Tensors inside lists, tuples and dicts: attribute place, its structure, its tensors.
    nested: list[tuple[TensorPlace, Any, list[BoundTensor]]] = field(default_factory=list)

    @property
    def bound(self) -> list[BoundTensor]:
        """All of them, in the order in which a step takes them."""
        return [*self.parameters, *self.buffers, *self.attributes]

    @property
    def tensors(self) -> list[Tensor]:
        return [bound.tensor for bound in self.bound]


_UNINITIALIZED = (UninitializedParameter, UninitializedBuffer)
_INTERNAL = (PARAMETERS, BUFFERS, MODULES)


def bind(module: nn.Module) -> Binding:
    """Collect the module's tensors, each once.

    Raises:
        CaptureError: if two different tensors share memory, which an update in place would break,
            or if a tensor is sparse or has no values.
    """
    binding = Binding(module)
    seen: dict[int, BoundTensor] = {}

    def add(known: list[BoundTensor], tensor: Tensor, place: TensorPlace | None) -> BoundTensor:
        bound = seen.get(id(tensor))
        if bound is None:
            bound = seen[id(tensor)] = BoundTensor(tensor, [])
            known.append(bound)
        if place is not None:
            bound.places.append(place)
        return bound

    for prefix, child in module.named_modules():
        dot = f"{prefix}." if prefix else ""
        for key, param in parameters_of(child).items():
            if param is not None:
                add(binding.parameters, param, TensorPlace(dot + key, parameters_of(child), key))
        for key, buffer in buffers_of(child).items():
            if buffer is not None:
                add(binding.buffers, buffer, TensorPlace(dot + key, buffers_of(child), key))
    for prefix, child in module.named_modules():
        dot = f"{prefix}." if prefix else ""
        for key, value in child.__dict__.items():
            if key in _INTERNAL or "hooks" in key:
                continue
            place = TensorPlace(dot + key, child.__dict__, key)
            if isinstance(value, Tensor):
                add(binding.attributes, value, place)
            elif isinstance(value, list | tuple | dict):
                tensors, node = flatten(value, dot + key)
                if tensors:
                    inside = [add(binding.attributes, tensor, None) for tensor in tensors]
                    for bound in inside:
                        bound.places = bound.places or [TensorPlace(dot + key, {}, key)]
                    binding.nested.append((place, node, inside))
    _refuse_unusable(binding)
    _refuse_overlaps(binding)
    return binding


def _refuse_unusable(binding: Binding) -> None:
    for bound in binding.bound:
        if bound.tensor.layout is not torch.strided:
            raise CaptureError(
                f"{bound.name!r} has layout {bound.tensor.layout}, which has no fixed size; keep a "
                "dense tensor (for a graph: edge_index and edge values)"
            )
        if bound.tensor.is_meta:
            raise CaptureError(
                f"{bound.name!r} is a meta tensor, which has a shape but no values; give the "
                "module real ones first: module.to_empty(device='cpu'), then load_state_dict(...)"
            )
    for name, child in binding.module.named_modules():
        if type(child).__name__ == "OptimizedModule":
            raise CaptureError(
                f"{name or 'the module'!r} is wrapped by torch.compile, which cannot be captured; "
                "pass the plain module: the whole step is compiled anyway"
            )


def _refuse_overlaps(binding: Binding) -> None:
    spans = []
    for bound in [*binding.parameters, *binding.buffers]:
        tensor = bound.tensor
        if isinstance(tensor, _UNINITIALIZED) or tensor.numel() == 0:
            continue
        last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
        start = tensor.data_ptr()
        spans.append((start, start + (last + 1) * tensor.element_size(), bound.name))
    # Neighbours in one block are fine: flattened weights (recurrent layers on CUDA) are that.
    spans.sort()
    for (_, end, one), (start, _, other) in itertools.pairwise(spans):
        if start < end:
            raise CaptureError(
                f"{one!r} and {other!r} are different tensors in the same memory; tie them by "
                "assigning the same Parameter to both places"
            )


@contextlib.contextmanager
def stand_ins(binding: Binding, tensors: list[Tensor]) -> Iterator[None]:
    """Let forward see `tensors` in place of the module's own, in the order of `binding.bound`.

    Afterwards every place holds its own tensor again, and attributes in which forward left a
    recorded tensor get back their old value.
    """
    before = [(child, dict(child.__dict__)) for child in binding.module.modules()]
    holders = {id(p.holder): p.holder for bound in binding.bound for p in bound.places}
    contents = [(holder, dict(holder)) for holder in holders.values()]
    replacement = {id(bound): t for bound, t in zip(binding.bound, tensors, strict=True)}
    try:
        for bound in binding.bound:
            for place in bound.places:
                if place.holder:
                    place.holder[place.key] = replacement[id(bound)]
        for place, node, inside in binding.nested:
            place.holder[place.key] = rebuild(node, [replacement[id(bound)] for bound in inside])
        yield
    finally:
        for holder, content in contents:
            if not _is_module_dict(holder, before):
                holder.clear()
                holder.update(content)
        for child, old in before:
            _restore_attributes(child, old)


def _is_module_dict(holder: dict[str, Any], before: list[tuple[nn.Module, dict[str, Any]]]) -> bool:
    return any(holder is child.__dict__ for child, _ in before)


def _restore_attributes(child: nn.Module, old: dict[str, Any]) -> None:
    """Undo what capture left behind, but keep the user's own Python side effects."""
    for key, value in list(child.__dict__.items()):
        if key in _INTERNAL or value is old.get(key):
            continue
        holds_tensor = isinstance(value, Tensor) or (
            isinstance(value, list | tuple | dict) and bool(flatten(value)[0])
        )
        if holds_tensor or isinstance(old.get(key), Tensor):
            if key in old:
                child.__dict__[key] = old[key]
            else:
                del child.__dict__[key]


def current_buffers(binding: Binding) -> list[Tensor | None]:
    """Return what each buffer's place holds now (None where it was removed)."""
    return [bound.places[0].holder.get(bound.places[0].key) for bound in binding.buffers]


def refresh(binding: Binding) -> bool:
    """Notice tensors that the user replaced since; True if one was.

    Raises:
        ExecutableError: if a replacement has another shape, dtype, device or layout.
    """
    changed = False
    for bound in binding.bound:
        place = bound.places[0]
        if not place.holder:
            continue
        now = place.holder.get(place.key)
        if now is bound.tensor:
            continue
        if not isinstance(now, Tensor):
            raise ExecutableError(
                f"{bound.name!r} was removed from the module after compilation; call destroy() to "
                "compile again"
            )
        bound.tensor = now
        changed = True
    return changed


def metadata(tensor: Tensor) -> tuple[Any, ...]:
    """Return what native code takes for granted about a tensor."""
    return (tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device)


def initialize_lazy(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Give lazy layers their parameters by one ordinary forward on real data.

    Buffers are put back afterwards, so running statistics do not count the batch twice.
    """
    lazy = [
        tensor
        for tensor in [*module.parameters(), *module.buffers()]
        if isinstance(tensor, _UNINITIALIZED)
    ]
    if not lazy:
        return
    saved = [
        (buffer, buffer.clone())
        for buffer in module.buffers()
        if not isinstance(buffer, _UNINITIALIZED)
    ]
    with torch.no_grad():
        module(*args, **kwargs)
        for buffer, value in saved:
            buffer.copy_(value)


def device_of(binding: Binding, batch: list[Tensor]) -> torch.device:
    """Return where a program runs: where the module is, or else its inputs."""
    return next((t.device for t in [*binding.tensors, *batch]), torch.device("cpu"))
