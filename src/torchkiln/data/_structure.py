"""Nested arguments and results: take the tensors out, put other tensors back in.

A value is a tensor, a tuple, list or dict (subclasses and named tuples included) of values, an
object of a registered container type, or a constant (anything else).
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast, runtime_checkable

import torch
from torch import Tensor

from torchkiln.core import Extends, load_extensions


class Container(Protocol):
    """How tensors are taken out of, and put back into, objects of one type."""

    def tensors(self, value: Any) -> Iterable[Tensor]:
        """Yield every tensor of `value` in a fixed order."""

    def rebuild(self, original: Any, tensors: Iterator[Tensor]) -> Any:
        """Return an object like `original` that holds the next tensors of the iterator."""


@runtime_checkable
class DescribedContainer(Container, Protocol):
    """A container that also tells what its objects are like, apart from values of tensors.

    Programs can then name a tensor in messages, refuse objects that differ in another way than in
    shapes, and know an executable again without tracing.
    """

    def names(self, value: Any) -> Sequence[str]:
        """Return the name of each tensor, in the order of `tensors`."""

    def constants(self, value: Any) -> Mapping[str, Any]:
        """Return everything else that forward can read from the object."""


_containers: dict[type, Container] = {}


def register_container(kind: type, container: Container | None) -> None:
    """Let objects of `kind` be passed to and returned from programs; None takes it back."""
    if container is None:
        _containers.pop(kind, None)
    else:
        _containers[kind] = container


def container_of(value: Any) -> Container | None:
    """Return the container registered for the exact type, else for the first base that fits."""
    load_extensions(Extends.CONTAINERS)
    exact = _containers.get(type(value))
    if exact is not None:
        return exact
    return next((c for kind, c in _containers.items() if isinstance(value, kind)), None)


@dataclass(frozen=True, slots=True)
class TensorNode:
    """The place of one tensor."""

    path: str

    def rebuild(self, tensors: Iterator[Any]) -> Any:
        return next(tensors)


@dataclass(frozen=True, slots=True)
class ConstantNode:
    """A value that is the same in every call."""

    path: str
    value: Any

    def rebuild(self, tensors: Iterator[Any]) -> Any:
        return self.value


@dataclass(frozen=True, slots=True)
class SequenceNode:
    """A tuple, a list, a named tuple or a subclass of one."""

    path: str
    kind: type
    children: tuple[Node, ...]

    def rebuild(self, tensors: Iterator[Any]) -> Any:
        entries = [child.rebuild(tensors) for child in self.children]
        if hasattr(self.kind, "_fields"):
            return self.kind(*entries)
        return self.kind(entries)


@dataclass(frozen=True, slots=True)
class MappingNode:
    """A dict or a subclass of one; keys in their order of insertion."""

    path: str
    kind: type
    keys: tuple[Any, ...]
    children: tuple[Node, ...]
    prototype: dict

    def rebuild(self, tensors: Iterator[Any]) -> Any:
        entries = zip(self.keys, (child.rebuild(tensors) for child in self.children), strict=True)
        if self.kind is dict:
            return dict(entries)
        # A subclass may need arguments that only a copy keeps (a defaultdict's factory).
        result = copy.copy(self.prototype)
        result.clear()
        for key, value in entries:
            result[key] = value
        return result


@dataclass(frozen=True, slots=True)
class CustomNode:
    """An object of a registered container type."""

    path: str
    original: Any
    container: Container
    count: int
    names: tuple[str, ...] | None = None
    constants: Mapping[str, Any] | None = field(default=None, hash=False)

    def rebuild(self, tensors: Iterator[Any]) -> Any:
        return self.container.rebuild(self.original, tensors)


Node = TensorNode | ConstantNode | SequenceNode | MappingNode | CustomNode


def flatten(value: Any, path: str = "") -> tuple[list[Tensor], Node]:
    """Return the tensors of `value` in order, and the structure that they were taken from."""
    tensors: list[Tensor] = []
    return tensors, _describe(value, path, tensors)


def _describe(value: Any, path: str, tensors: list[Tensor]) -> Node:
    if isinstance(value, Tensor):
        tensors.append(value)
        return TensorNode(path)
    container = container_of(value)
    if container is not None:
        found = list(container.tensors(value))
        tensors.extend(found)
        described = _as_described(container)
        if described is None:
            return CustomNode(path, value, container, len(found))
        names = tuple(described.names(value))
        return CustomNode(path, value, container, len(found), names, described.constants(value))
    # torch.Size is a tuple of plain numbers: a constant, not a structure.
    if isinstance(value, tuple | list) and not isinstance(value, torch.Size):
        children = tuple(_describe(v, f"{path}[{i}]", tensors) for i, v in enumerate(value))
        return SequenceNode(path, type(value), children)
    if isinstance(value, dict):
        children = tuple(_describe(v, f"{path}[{k!r}]", tensors) for k, v in value.items())
        return MappingNode(path, type(value), tuple(value), children, value)
    return ConstantNode(path, value)


def _as_described(container: Container) -> DescribedContainer | None:
    return cast(DescribedContainer, container) if _is_described(type(container)) else None


@functools.cache
def _is_described(kind: type) -> bool:
    return issubclass(kind, DescribedContainer)  # slow, and asked on every call of a program


def rebuild(node: Node, tensors: Iterable[Any]) -> Any:
    """Return a value of the given structure that holds `tensors`."""
    return node.rebuild(iter(tensors))


def map_tensors(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    """Return `value` with `function` applied to every tensor in it."""
    tensors, node = flatten(value)
    return rebuild(node, [function(tensor) for tensor in tensors])


def concatenate(values: list[Any]) -> Any:
    """Join values of one structure along dim 0, tensor by tensor; constants come from the first."""
    flat = [flatten(value) for value in values]
    columns = zip(*(tensors for tensors, _ in flat), strict=True)
    return rebuild(flat[0][1], [torch.cat(column, dim=0) for column in columns])


def paths(node: Node) -> list[str]:
    """Return where each tensor of the structure sits, in order, for messages."""
    if isinstance(node, TensorNode):
        return [node.path]
    if isinstance(node, SequenceNode | MappingNode):
        return [path for child in node.children for path in paths(child)]
    if isinstance(node, CustomNode):
        names = node.names or [f"tensor[{i}]" for i in range(node.count)]
        return [f"{node.path}.{name}" for name in names]
    return []
