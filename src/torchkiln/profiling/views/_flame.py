"""The time of the executable as a flame graph: wide boxes take long, below them are their parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from torchkiln.profiling.graph._values import GraphProfile, Row
from torchkiln.profiling.views._timeline import module_parts
from torchkiln.profiling.views._totals import (
    OUTERMOST,
    UNEXPLAINED,
    line_label,
    parts_of_calls,
    phases_of,
    unexplained_us,
)

# Boxes that are narrower than this share of the picture are not drawn without a script.
_NARROWEST = 0.004
# Name, kind and detail of a box on the way to a row.
_Step = tuple[str, str, str]


@dataclass(slots=True)
class Node:
    """A box.

    Args:
        name: Written in it.
        kind: phase, module, file, line or operator.
        detail: More about it, such as the text of a line.
        us: Time of all that is in it.
        is_estimate: Whether some of that time is divided by work, with boxes elsewhere.
        children: By name and kind.
        parts: How many rows of each divided call are in it.
    """

    name: str
    kind: str
    detail: str = ""
    us: float = 0.0
    is_estimate: bool = False
    children: dict[tuple[str, str], Node] = field(default_factory=dict)
    parts: Counter[int] = field(default_factory=Counter)

    def add(self, row: Row) -> None:
        self.us += row.us or 0.0
        if row.is_estimate:
            self.parts[row.call] += 1

    def mark(self, parts: Counter[int]) -> None:
        """Note what is an estimate, here and below, once all rows are in."""
        self.is_estimate = any(parts[call] > count for call, count in self.parts.items())
        for child in self.children.values():
            child.mark(parts)

    def child(self, name: str, kind: str, detail: str = "") -> Node:
        return self.children.setdefault((kind, name), Node(name, kind, detail))

    def ordered(self) -> list[Node]:
        """Return the children, the longest first."""
        return sorted(self.children.values(), key=lambda node: (-node.us, node.name))


def module_tree(profile: GraphProfile) -> Node:
    """Return phase, module path split at dots, line, operator."""

    def path(row: Row) -> Iterator[_Step]:
        yield row.phase, "phase", ""
        parts = module_parts(row.module)
        for whole in parts:
            kind = row.module_kind if whole == row.module else ""
            yield whole.rpartition(".")[2], "module", f"{whole} {kind}".strip()
        if not parts:
            yield OUTERMOST, "module", row.module_kind
        yield from _line_and_operator(profile, row)

    return _tree(profile, path)


def line_tree(profile: GraphProfile) -> Node:
    """Return phase, file, line, operator."""

    def path(row: Row) -> Iterator[_Step]:
        line = profile.line_of(row)
        yield row.phase, "phase", ""
        if line is not None:
            yield line.file, "file", ""
        yield from _line_and_operator(profile, row)

    return _tree(profile, path)


def _line_and_operator(profile: GraphProfile, row: Row) -> Iterator[_Step]:
    line = profile.line_of(row)
    yield line_label(profile, row), "line", "" if line is None else line.code.strip()
    yield row.operator, "operator", ""


def _tree(profile: GraphProfile, path: Callable[[Row], Iterator[_Step]]) -> Node:
    root = Node("executable", "executable")
    for phase in phases_of(profile):  # in their order, whatever they take
        root.child(phase, "phase")
    for row in profile.rows:
        node = root
        node.add(row)
        for name, kind, detail in path(row):
            node = node.child(name, kind, detail)
            node.add(row)
    root.mark(parts_of_calls(profile))
    rest = unexplained_us(profile)
    if rest > 0:
        root.us += rest
        root.child(UNEXPLAINED, "phase").us = rest
    return root


@dataclass(frozen=True, slots=True)
class Box:
    """A box in its place, in percent of the width and in rows from the top."""

    node: Node
    left: float
    width: float
    depth: int


def static_boxes(root: Node) -> list[Box]:
    """Return the boxes that are wide enough to be seen, for pages without a script."""
    boxes: list[Box] = []
    if root.us <= 0:
        return boxes

    def place(node: Node, left: float, depth: int) -> None:
        width = node.us / root.us
        if width < _NARROWEST:
            return
        boxes.append(Box(node, 100 * left, 100 * width, depth))
        for child in ordered_children(node):
            place(child, left, depth + 1)
            left += child.us / root.us

    place(root, 0.0, 0)
    return boxes


def ordered_children(node: Node) -> list[Node]:
    """Return what lies below a box: phases in their order, all else the longest first."""
    return list(node.children.values()) if node.kind == "executable" else node.ordered()
