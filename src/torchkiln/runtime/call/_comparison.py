"""Telling how a call differs from the compiled one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from torchkiln.core import ShapeChanged
from torchkiln.data import flatten
from torchkiln.data._structure import (
    ConstantNode,
    CustomNode,
    MappingNode,
    Node,
    SequenceNode,
    TensorNode,
)

REMEDY = "a program runs one call form only: create a new one, or destroy() this one first"


def argument_name(path: str) -> str:
    """Turn the path "['x'][0]" of the argument dictionary into "x[0]"."""
    if path.startswith("['"):
        name, _, rest = path[2:].partition("']")
        return name + rest
    return path


def compare(expected: Node, got: Node) -> bool:
    """Raise `ShapeChanged` where structure or constants differ; True if only key order does."""
    name = argument_name(expected.path)
    if isinstance(expected, ConstantNode) and isinstance(got, ConstantNode):
        if not _same(expected.value, got.value):
            if type(expected.value) is not type(got.value):
                raise _type_changed(name, type(expected.value), type(got.value))
            raise ShapeChanged(
                f"Value mismatch for {name}: expected {_short(expected.value)} but got "
                f"{_short(got.value)}. Python values are compiled in (objects that hold tensors "
                f"too, unless register_container() makes them inputs); {REMEDY}"
            )
        return False
    if type(expected) is not type(got) or _kind(expected) is not _kind(got):
        raise _type_changed(name, _kind(expected), _kind(got))
    if isinstance(expected, MappingNode) and isinstance(got, MappingNode):
        return _compare_mappings(name, expected, got)
    if isinstance(expected, SequenceNode) and isinstance(got, SequenceNode):
        if len(expected.children) != len(got.children):
            raise ShapeChanged(
                f"Length mismatch for {name}: expected {len(expected.children)} entries but got "
                f"{len(got.children)}. {REMEDY}"
            )
        pairs = zip(expected.children, got.children, strict=True)
        reordered = [compare(one, other) for one, other in pairs]
        return any(reordered)
    if isinstance(expected, CustomNode) and isinstance(got, CustomNode):
        _compare_objects(name, expected, got)
    return False


def _compare_objects(name: str, expected: CustomNode, got: CustomNode) -> None:
    if expected.names is not None and got.names is not None and expected.names != got.names:
        raise _keys_changed(name, expected.names, got.names)
    if expected.count != got.count:
        raise ShapeChanged(
            f"Length mismatch for {name}: expected {expected.count} tensors but got {got.count}. "
            f"{REMEDY}"
        )
    others = got.constants or {}
    for key, value in (expected.constants or {}).items():
        # Plain values steer Python code; others (lists of names) may differ from call to call.
        if type(value) in (bool, int, float, str) and not _same(value, others.get(key)):
            raise ShapeChanged(
                f"Value mismatch for {name}.{key}: expected {_short(value)} but got "
                f"{_short(others.get(key))}. {REMEDY}"
            )


def _keys_changed(name: str, expected: Iterable[Any], got: Iterable[Any]) -> ShapeChanged:
    missing = sorted(str(key) for key in set(expected) - set(got))
    extra = sorted(str(key) for key in set(got) - set(expected))
    details = [f"Missing arguments: {', '.join(missing)}"] if missing else []
    details += [f"Unexpected arguments: {', '.join(extra)}"] if extra else []
    details = details or ["their order differs"]
    return ShapeChanged(f"Keys mismatch for {name}: {'; '.join(details)}. {REMEDY}")


def _compare_mappings(name: str, expected: MappingNode, got: MappingNode) -> bool:
    if set(expected.keys) != set(got.keys):
        raise _keys_changed(name, expected.keys, got.keys)
    others = dict(zip(got.keys, got.children, strict=True))
    reordered = [
        compare(child, others[key])
        for key, child in zip(expected.keys, expected.children, strict=True)
    ]
    return expected.keys != got.keys or any(reordered)


def collect(expected: Node, value: Any, tensors: list[Tensor]) -> None:
    """Take the tensors out of `value` in the order of the compiled structure."""
    if isinstance(expected, MappingNode):
        for key, child in zip(expected.keys, expected.children, strict=True):
            collect(child, value[key], tensors)
    elif isinstance(expected, SequenceNode):
        for child, entry in zip(expected.children, value, strict=True):
            collect(child, entry, tensors)
    else:
        tensors.extend(flatten(value)[0])


def _kind(node: Node) -> type:
    if isinstance(node, TensorNode):
        return Tensor
    if isinstance(node, ConstantNode):
        return type(node.value)
    if isinstance(node, CustomNode):
        return type(node.original)
    return node.kind


def _type_changed(name: str, expected: type, got: type) -> ShapeChanged:
    return ShapeChanged(f"Type mismatch for {name}: expected {expected} but got {got}. {REMEDY}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def _same(expected: Any, got: Any) -> bool:
    if expected is got:
        return True
    if type(expected) is not type(got):
        return False  # 1, 1.0 and True are equal, and give results of different dtypes
    try:
        return bool(expected == got) or bool(expected != expected and got != got)  # NaN
    except (TypeError, ValueError, RuntimeError):
        # Objects without a plain truth value (arrays): only the very same one is the same.
        return False
