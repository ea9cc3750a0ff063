"""The shape of every mini-batch, and what its filler holds."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torchkiln.core import OptionsError

NodeType = str
EdgeType = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class BatchSpec:
    """How many nodes, edges and graphs every mini-batch has, filler included.

    One node and one graph always stay filler, so that a full batch looks like any other.
    For heterogeneous graphs the sizes are dicts by node type and by edge type.
    """

    num_nodes: int | Mapping[NodeType, int]
    num_edges: int | Mapping[EdgeType, int]
    num_graphs: int

    def __post_init__(self) -> None:
        for name in ("num_nodes", "num_edges", "num_graphs"):
            object.__setattr__(self, name, to_sizes(name, getattr(self, name)))
        if isinstance(self.num_nodes, Mapping) != isinstance(self.num_edges, Mapping):
            raise OptionsError(
                "num_nodes and num_edges must both be numbers, or both be dicts by type; got "
                f"{self.num_nodes!r} and {self.num_edges!r}"
            )
        if self.num_graphs < 2:
            raise OptionsError(
                f"num_graphs must be at least 2 (one real graph, one of filler), "
                f"got {self.num_graphs}"
            )
        for name, sizes, least in (
            ("num_nodes", self.num_nodes, 2),
            ("num_edges", self.num_edges, 0),
        ):
            for kind, size in sizes.items() if isinstance(sizes, Mapping) else [(None, sizes)]:
                if size < least:
                    where = "" if kind is None else f" of {kind!r}"
                    raise OptionsError(f"{name}{where} must be at least {least}, got {size}")

    @property
    def is_hetero(self) -> bool:
        return isinstance(self.num_nodes, Mapping)


@dataclass(frozen=True, slots=True)
class PadValues:
    """What filler nodes, edges and graphs hold; `attributes` overrides by attribute name.

    Values are cast to the attribute's dtype. Infinite and NaN values are refused: multiplied by a
    mask they would still make sums and gradients NaN.
    """

    node: float = 0.0
    edge: float = 0.0
    graph: float = 0.0
    attributes: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        named: dict[str, Any] = {"node": self.node, "edge": self.edge, "graph": self.graph}
        for name, value in {**named, **self.attributes}.items():
            if not math.isfinite(value):
                raise OptionsError(
                    f"the pad value of {name} is {value}, which would turn masked sums and "
                    "gradients into NaN; use a finite number"
                )


def to_count(name: str, value: Any, *, least: int) -> int:
    """Return a whole number of at least `least`."""
    number = to_number(name, value)
    if number < least:
        raise OptionsError(f"{name} must be at least {least}, got {number}")
    return number


def to_sizes(name: str, size: Any) -> Any:
    """Return sizes as Python's own numbers: those of NumPy and torch are no int."""
    if isinstance(size, Mapping):
        return {kind: to_sizes(f"{name} of {kind!r}", number) for kind, number in size.items()}
    return to_number(name, size)


def to_number(name: str, value: Any) -> int:
    """Return a whole number as Python's own."""
    try:
        return operator.index(value)
    except TypeError:
        raise OptionsError(f"{name} must be a whole number, got {value!r}") from None
