"""What must be known about a compiled program to run it without tracing; plain JSON."""

from __future__ import annotations

import importlib
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from torchkiln.core import LossInputs
from torchkiln.data._structure import ConstantNode, MappingNode, Node, SequenceNode, TensorNode


@dataclass(slots=True)
class ProgramMetadata:
    """The caller's view of an executable."""

    entries: list[str]
    node: Node
    updated: list[str]
    reassigned: list[str]
    mutated_inputs: list[int]
    constant_outputs: list[int]
    # Of training programs that were recorded.
    loss_inputs: LossInputs | None = None
    # Helpers of `torchkiln.ops` that the executable calls, which must be built before it runs.
    natives: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any] | None:
        """Return plain values, or None if the outputs hold objects that JSON cannot express."""
        try:
            node = node_to_json(self.node)
        except TypeError:
            return None
        return {
            "entries": self.entries,
            "outputs": node,
            "updated": self.updated,
            "reassigned": self.reassigned,
            "mutated_inputs": self.mutated_inputs,
            "constant_outputs": self.constant_outputs,
            "loss_inputs": None if self.loss_inputs is None else self.loss_inputs.to_json(),
            "natives": self.natives,
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> ProgramMetadata:
        told = values.get("loss_inputs")  # files of earlier versions have none
        return cls(
            values["entries"],
            node_from_json(values["outputs"]),
            values["updated"],
            values["reassigned"],
            values["mutated_inputs"],
            values["constant_outputs"],
            None if told is None else LossInputs.from_json(told),
            # Files of earlier versions do not say; helpers are then built when they are called.
            list(map(str, values.get("natives", []))),
        )


def node_to_json(node: Node) -> dict[str, Any]:
    """Return a structure as plain values; raises TypeError where it holds objects."""
    if isinstance(node, TensorNode):
        return {"tensor": node.path}
    if isinstance(node, ConstantNode):
        if node.value is not None and type(node.value) not in (bool, int, float, str):
            raise TypeError(f"{type(node.value)} is not plain")
        return {"constant": node.value, "path": node.path}
    if isinstance(node, SequenceNode):
        kind = _kind_name(node.kind)
        return {"sequence": kind, "path": node.path, "children": _all_to_json(node.children)}
    if isinstance(node, MappingNode):
        if node.kind not in (dict, OrderedDict):
            raise TypeError(f"{node.kind} needs more than its entries")
        if any(type(key) not in (str, int) for key in node.keys):
            raise TypeError("keys are not plain")
        return {
            "mapping": _kind_name(node.kind),
            "path": node.path,
            "keys": list(node.keys),
            "children": _all_to_json(node.children),
        }
    raise TypeError(f"{type(node)} holds an object")


def _all_to_json(nodes: tuple[Node, ...]) -> list[dict[str, Any]]:
    return [node_to_json(node) for node in nodes]


def node_from_json(values: dict[str, Any]) -> Node:
    """Rebuild what `node_to_json` described."""
    if "tensor" in values:
        return TensorNode(values["tensor"])
    if "constant" in values:
        return ConstantNode(values["path"], values["constant"])
    children = tuple(node_from_json(child) for child in values["children"])
    if "sequence" in values:
        return SequenceNode(values["path"], _find_kind(values["sequence"]), children)
    kind = _find_kind(values["mapping"])
    return MappingNode(values["path"], kind, tuple(values["keys"]), children, kind())


def _kind_name(kind: type) -> str:
    """Return where a container type can be imported from again."""
    name = f"{kind.__module__}:{kind.__qualname__}"
    try:
        found = _find_kind(name)
    except (ImportError, AttributeError):
        found = None
    if found is not kind:
        raise TypeError(f"{kind} cannot be imported by name")
    return name


def _find_kind(name: str) -> type:
    home, _, qualified = name.partition(":")
    found: Any = importlib.import_module(home)
    for part in qualified.split("."):
        found = getattr(found, part)
    if not (isinstance(found, type) and issubclass(found, tuple | list | dict)):
        raise TypeError(f"{name} is not a container type")
    return found
