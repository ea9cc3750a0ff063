"""Sums and extremes by index in a recorded graph, as calls of kernels that need no atomics.

Inductor (torch 2.13) adds rows of `index_add` by compare-and-swap, one number at a time, also where
it had them in vector registers; `scatter_add` and `scatter_reduce` stay calls of torch, for which a
row an edge is written to memory. Message passing is little else, forward and backward; so every
such operation on CPU floats becomes `torchkiln::scatter_sum` or `scatter_extreme`. Rows that were
gathered only to be weighted and summed are read by the kernel where they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, fx

from torchkiln.ops._scatter import (
    SCATTER_HELPER,
    has_scatter_kernels,
    scatter_extreme,
    scatter_sum,
    serves_scatter,
)
from torchkiln.runtime.passes._calls import arguments_of, base_of, written_by
from torchkiln.torch_internals._autograd import schema_of

aten = torch.ops.aten
_ZEROS = (aten.new_zeros.default, aten.zeros.default, aten.zeros_like.default)
# Same numbers in the same memory, in another shape.
_SHAPED = (aten.view.default, aten.unsqueeze.default, aten.expand.default)


@dataclass(frozen=True, slots=True)
class _Found:
    """An operation that puts `rows` together by `index`; `base` None: onto zeros."""

    base: fx.Node | None
    index: fx.Node
    rows: fx.Node
    reduce: str = "sum"
    include_base: bool = True


def aggregate_natively(graph: fx.GraphModule) -> None:
    """Replace aggregations that a kernel does better; all others stay as they are."""
    nodes = list(graph.graph.nodes)
    rewriter = _Rewriter(graph, nodes)
    for node in nodes:
        find = _FINDERS.get(node.target)
        if find is None or not _is_plain(node) or not has_scatter_kernels():
            continue
        found = find(rewriter, node)
        if found is not None:
            rewriter.replace(node, found)


def natives_of_aggregations(graph: fx.GraphModule) -> set[str]:
    """Return the native helper that `aggregate_natively` will ask for, if there is work for it."""
    nodes = graph.graph.nodes
    return {SCATTER_HELPER for node in nodes if node.target in _FINDERS and _is_plain(node)}


def _value(node: Any) -> Tensor | None:
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return value if isinstance(value, Tensor) else None


def _is_plain(node: fx.Node) -> bool:
    """Whether the result is of a kind that the kernels make."""
    value = _value(node)
    return value is not None and value.dim() > 0 and value.is_contiguous() and serves_scatter(value)


def _fits(node: fx.Node, rows: Any, index: Any) -> bool:
    """Whether there is an index for each row, and rows are as wide as those of the result."""
    result, value, places = _value(node), _value(rows), _value(index)
    return (
        result is not None
        and value is not None
        and places is not None
        and places.dim() == 1
        and places.dtype == torch.int64
        and value.dtype == result.dtype
        and value.device == result.device
        and value.shape == (*places.shape, *result.shape[1:])
    )


def _row_index(index: Any, rows: Any) -> fx.Node | None:
    """Return the index of whole rows behind an index that was expanded to the shape of `rows`."""
    value, shape = _value(rows), _value(index)
    if value is None or shape is None or value.dim() == 0 or shape.shape != value.shape:
        return None
    node, count = cast(fx.Node, index), value.shape[0]
    while (here := _value(node)) is not None and here.shape[:1] == (count,):
        if here.dim() == 1:
            return node
        if node.target not in _SHAPED or not isinstance(node.args[0], fx.Node):
            return None
        parent = _value(node.args[0])
        # One number a row, or nothing was expanded at this step.
        if parent is None or parent.numel() not in (count, here.numel()):
            return None
        if parent.numel() != here.numel() and parent.shape[:1] != (count,):
            return None
        node = node.args[0]
    return None


class _Rewriter:
    """The graph, and where in it memory is written."""

    def __init__(self, graph: fx.GraphModule, nodes: list[fx.Node]) -> None:
        self._graph = graph.graph
        self._places = {node: place for place, node in enumerate(nodes)}
        # Results of kernels -> what was written in their stead, under which writes are known.
        self._stands_for: dict[fx.Node, fx.Node] = {}
        self._writes = [
            (self._places[node], base_of(written)) for node in nodes for written in written_by(node)
        ]

    def base(self, node: fx.Node, written: Any) -> tuple[bool, fx.Node | None]:
        """Return whether the operation can be a new tensor, and what it adds to (None: zeros)."""
        if not isinstance(written, fx.Node):
            return False, None
        fresh = written.target in _ZEROS and not any(
            base is written and place < self._places[node] for place, base in self._writes
        )
        in_place = bool(schema_of(node.target).is_mutable)
        if in_place and not (fresh and self._is_last_user(node, written)):
            return False, None
        return True, None if fresh else written

    def _is_last_user(self, node: fx.Node, written: fx.Node) -> bool:
        """Whether others have only read `written`, and before `node` (autograd keeps a copy)."""
        return all(
            user is node
            or (self._places[user] < self._places[node] and base_of(user) is not written)
            for user in written.users
        )

    def positive(self, node: fx.Node, index: fx.Node, size: int) -> fx.Node:
        """Return `index` with negative numbers counted from the end."""
        negative = self._call(node, aten.lt.Scalar, index, 0)
        moved = self._call(node, aten.add.Tensor, index, size)
        result = self._call(node, aten.where.self, negative, moved, index)
        result.meta = {**index.meta, **result.meta}
        return result

    def without(self, node: fx.Node, rows: fx.Node, index: fx.Node, number: int) -> fx.Node:
        """Return `rows` with zeros where `index` is `number`."""
        value = _value(rows)
        assert value is not None
        chosen = self._call(node, aten.eq.Scalar, index, number)
        chosen = self._call(node, aten.view.default, chosen, [-1, *[1] * (value.dim() - 1)])
        result = self._call(node, aten.masked_fill.Scalar, rows, chosen, 0.0)
        result.meta = {**rows.meta, **result.meta}
        return result

    def replace(self, node: fx.Node, found: _Found) -> None:
        """Let a kernel do what `node` did."""
        value = _value(node)
        assert value is not None
        if found.reduce == "sum":
            table, source, weight = self._gathered(node, found.rows)
            rest = (found.index, len(value), source, weight, found.base)
            result = self._call(node, scatter_sum, table, *rest)
        else:
            choices = (found.reduce == "amax", found.base, found.include_base)
            result = self._call(
                node, scatter_extreme, found.rows, found.index, len(value), *choices
            )
        result.meta = dict(node.meta)
        self._stands_for[result] = self._memory(node)
        node.replace_all_uses_with(result)
        self._erase(node)

    def _call(self, before: fx.Node, target: Any, *args: Any) -> fx.Node:
        with self._graph.inserting_before(before):
            made = self._graph.call_function(target, args)
        # It is there for `before`, whatever it reads.
        made.meta["custom"] = before.meta.get("custom", {})
        self._places[made] = self._places[before]
        return made

    def _gathered(
        self, node: fx.Node, rows: fx.Node
    ) -> tuple[fx.Node, fx.Node | None, fx.Node | None]:
        """Return table, row numbers and factors whose product `rows` is, as far as it is one."""
        gather = self._gather(node, rows)
        if gather is not None:
            return (*gather, None)
        if rows.target is aten.mul.Tensor:
            for own, other in (rows.args[:2], rows.args[1::-1]):
                gather = self._gather(node, own)
                if (
                    gather is not None
                    and _is_factor(other, rows)
                    and self._holds(other, rows, node)
                ):
                    return (*gather, cast(fx.Node, other))
        return rows, None, None

    def _gather(self, node: fx.Node, rows: Any) -> tuple[fx.Node, fx.Node] | None:
        """Return table and row numbers if `rows` are rows of a table that is still the same."""
        find = _GATHERS.get(rows.target) if isinstance(rows, fx.Node) else None
        found = None if find is None else find(rows)
        if found is None or not all(self._holds(part, rows, node) for part in found):
            return None
        table, result = _value(found[0]), _value(node)
        same = table is not None and result is not None and table.dtype == result.dtype
        return found if same else None

    def _holds(self, tensor: Any, since: fx.Node, until: fx.Node) -> bool:
        """Whether nothing is written to the memory of `tensor` between two nodes."""
        base, begin, end = self._memory(tensor), self._places[since], self._places[until]
        return not any(begin < place < end and base is other for place, other in self._writes)

    def _memory(self, tensor: fx.Node) -> fx.Node:
        base = base_of(tensor)
        return self._stands_for.get(base, base)

    def _erase(self, node: fx.Node) -> None:
        """Take out a node without users, and what only it used."""
        unused, erased = [node], set()
        while unused:
            node = unused.pop()
            if node not in erased:
                erased.add(node)
                parents = node.all_input_nodes
                self._graph.erase_node(node)
                unused += [p for p in parents if not p.users and p.target in _REMOVABLE]


def _is_factor(factor: Any, rows: fx.Node) -> bool:
    """Whether `factor` has one number for each row, or for each of its leading parts."""
    value, whole = _value(factor), _value(rows)
    if value is None or whole is None or value.dim() != whole.dim() or value.dtype != whole.dtype:
        return False
    shape = list(value.shape)
    while len(shape) > 1 and shape[-1] == 1:
        shape.pop()
    return tuple(shape) == whole.shape[: len(shape)]


def _at_front(dim: Any, tensor: Tensor | None) -> bool:
    return tensor is not None and tensor.dim() > 0 and dim % tensor.dim() == 0


def _gather_select(node: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    given = arguments_of(node)
    table, index = given["self"], _value(given["index"])
    if index is None or index.dim() != 1 or index.dtype != torch.int64:
        return None
    return (table, given["index"]) if _at_front(given["dim"], _value(table)) else None


def _gather_expanded(node: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    given = arguments_of(node)
    table, value = _value(given["self"]), _value(node)
    if table is None or value is None or table.shape[1:] != value.shape[1:]:
        return None
    index = _row_index(given["index"], node)
    return (given["self"], index) if index and _at_front(given["dim"], table) else None


_GATHERS: dict[Any, Callable[[fx.Node], tuple[fx.Node, fx.Node] | None]] = {
    aten.index_select.default: _gather_select,
    aten.gather.default: _gather_expanded,
}


def _index_add(rewriter: _Rewriter, node: fx.Node) -> _Found | None:
    given = arguments_of(node)
    index, rows = given["index"], given["source"]
    possible, base = rewriter.base(node, given["self"])
    if not possible or given["alpha"] != 1 or not _at_front(given["dim"], _value(node)):
        return None
    return _Found(base, index, rows) if _fits(node, rows, index) else None


def _scatter(rewriter: _Rewriter, node: fx.Node) -> _Found | None:
    given = arguments_of(node)
    rows, reduce = given["src"], given.get("reduce", "sum")
    include = bool(given.get("include_self", True))
    index = _row_index(given["index"], rows)
    possible, base = rewriter.base(node, given["self"])
    if index is None or not possible or not _at_front(given["dim"], _value(node)):
        return None
    if reduce not in ("sum", "amax", "amin") or not _fits(node, rows, index):
        return None
    if reduce == "sum" and base is not None and not include:
        return None
    if reduce != "sum" and base is None and include:
        return None  # zeros that take part: rare, and the kernel has no name for it
    return _Found(base, index, rows, reduce, include)


def _index_put(rewriter: _Rewriter, node: fx.Node) -> _Found | None:
    given = arguments_of(node)
    indices, rows, value = given["indices"], given["values"], _value(node)
    possible, base = rewriter.base(node, given["self"])
    if not possible or not given["accumulate"] or len(indices) != 1 or value is None:
        return None
    if not _fits(node, rows, indices[0]):
        return None
    return _Found(base, rewriter.positive(node, indices[0], len(value)), rows)


def _embedding(rewriter: _Rewriter, node: fx.Node) -> _Found | None:
    given = arguments_of(node)
    index, rows = given["indices"], given["grad_output"]
    if given["scale_grad_by_freq"] or not _fits(node, rows, index):
        return None
    if given["padding_idx"] >= 0:
        rows = rewriter.without(node, rows, index, given["padding_idx"])
    return _Found(None, index, rows)


_FINDERS: dict[Any, Callable[[_Rewriter, fx.Node], _Found | None]] = {
    aten.index_add.default: _index_add,
    aten.index_add_.default: _index_add,
    aten.scatter_add.default: _scatter,
    aten.scatter_add_.default: _scatter,
    aten.scatter_reduce.two: _scatter,
    aten.scatter_reduce_.two: _scatter,
    aten.index_put.default: _index_put,
    aten.index_put_.default: _index_put,
    aten.embedding_dense_backward.default: _embedding,
}
_REMOVABLE = {*_ZEROS, *_SHAPED, *_GATHERS, aten.mul.Tensor}
