"""What layers must know about the batch at hand: which rows are real, how many graphs there are.

A model made static finds it in the arguments of its own forward and keeps it here while that
forward runs; layers deep inside read it. Other modules of a program can set it with `batch_form`.
"""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn

from torchkiln.core import ArgumentError
from torchkiln.torch_internals._autograd import is_in_backward
from torchkiln.torch_internals._tensors import mark_for_layers

_local = threading.local()

# Torchkiln's names of masks, and those of PopTorch Geometric.
_MASKS = {
    f"{kind}{plural}_mask": kind for kind in ("node", "edge", "graph") for plural in ("", "s")
}


@dataclass(frozen=True, slots=True)
class BatchForm:
    """Masks (True = real) by what they are of, and sizes with filler; None where unknown."""

    masks: Mapping[str, Tensor] = field(default_factory=dict)
    num_graphs: int | None = None
    max_num_nodes: int | None = None

    def mask_of(self, rows: int, who: str) -> Tensor | None:
        """Return the mask for a tensor of `rows` rows; None if the batch has no masks at all.

        Raises:
            ArgumentError: if no mask, or more than one, has that length.
        """
        if not self.masks:
            return None
        fitting = {id(mask): name for name, mask in self.masks.items() if len(mask) == rows}
        lengths = {name: len(mask) for name, mask in self.masks.items()}
        if not fitting:
            raise ArgumentError(
                f"{who} got {rows} rows, but the masks of this batch have {lengths}; pass the mask "
                "of those rows, or wrap the layer: with batch_form(node_mask=...): ..."
            )
        if len(fitting) > 1:
            raise ArgumentError(
                f"{who} got {rows} rows, which could be {' or '.join(fitting.values())} "
                f"({lengths}); give nodes, edges and graphs different sizes in the batch's spec, "
                "or name the mask around that part of forward: with batch_form(node_mask=...): ..."
            )
        name = next(iter(fitting.values()))
        return self.masks[name]


_NOTHING = BatchForm()


def current_form() -> BatchForm:
    """Return what is known about the batch of the forward that this thread runs."""
    stack = getattr(_local, "stack", None)
    if stack:
        form: BatchForm = stack[-1]
        return form
    # A checkpointed block runs again in backward, when its model's forward is long over.
    return getattr(_local, "last", _NOTHING) if is_in_backward() else _NOTHING


def push_form(form: BatchForm) -> None:
    if not hasattr(_local, "stack"):
        _local.stack = []
    _local.stack.append(form)


def pop_form() -> None:
    _local.last = _local.stack.pop()


@contextlib.contextmanager
def batch_form(
    *,
    node_mask: Tensor | None = None,
    edge_mask: Tensor | None = None,
    graph_mask: Tensor | None = None,
    num_graphs: int | None = None,
    max_num_nodes: int | None = None,
) -> Iterator[None]:
    """Tell static layers about the batch, where they cannot find it in forward's arguments.

    What is not given stays as it was outside.
    """
    given = {"node": node_mask, "edge": edge_mask, "graph": graph_mask}
    masks = _for_layers({name: mask for name, mask in given.items() if mask is not None})
    push_form(_merged(current_form(), BatchForm(masks, num_graphs, max_num_nodes)))
    try:
        yield
    finally:
        pop_form()


def _merged(outer: BatchForm, inner: BatchForm) -> BatchForm:
    graphs = inner.masks.get("graph")
    found = inner.num_graphs
    if found is None and graphs is not None:
        found = len(graphs)
    # A node mask stands for all node masks around it, those of several batches or types included.
    replaced = {name.split()[0] for name in inner.masks}
    kept = {name: mask for name, mask in outer.masks.items() if name.split()[0] not in replaced}
    return replace(
        outer,
        masks={**kept, **inner.masks},
        num_graphs=outer.num_graphs if found is None else found,
        max_num_nodes=inner.max_num_nodes or outer.max_num_nodes,
    )


def find_form(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> BatchForm:
    """Return what the arguments of a forward tell, merged into what is known already.

    Masks are found by name: as arguments, in dicts, and in PyG's `Data`, `Batch` and `HeteroData`.
    """
    try:
        named = inspect.signature(module.forward).bind_partial(*args, **kwargs).arguments
    except TypeError:
        named = dict(kwargs)  # the call itself will say what is wrong
    masks: dict[str, list[Tensor]] = {}
    counts: list[int] = []
    for name, value in named.items():
        _collect(name, value, masks, counts)
    # Two batches of different sizes: nobody can tell here which one a layer gets.
    count = counts[0] if len(set(counts)) == 1 else None
    return _merged(current_form(), BatchForm(_named_masks(masks), count))


def _named_masks(found: dict[str, list[Tensor]]) -> dict[str, Tensor]:
    """Return masks by name; those of several batches are numbered, lest one stands for all."""
    named = {}
    for kind, masks in found.items():
        different = list({id(mask): mask for mask in masks}.values())
        for number, mask in enumerate(different, start=1):
            named[kind if len(different) == 1 else f"{kind} (batch {number})"] = mask
    return _for_layers(named)


def _for_layers(masks: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return marked masks: a program tells them from those that forward itself uses.

    Masks of one object stay one, since that is how `mask_of` knows them.
    """
    marked = {id(mask): mark_for_layers(mask) for mask in masks.values()}
    return {name: marked[id(mask)] for name, mask in masks.items()}


def _collect(name: str, value: Any, masks: dict[str, list[Tensor]], counts: list[int]) -> None:
    if isinstance(value, Tensor):
        if name in _MASKS:
            masks.setdefault(_MASKS[name], []).append(value)
    elif hasattr(value, "stores") and hasattr(value, "to_dict"):
        _collect_data(value, masks, counts)
    elif isinstance(value, Mapping):
        for key, entry in value.items():
            _collect(str(key), entry, masks, counts)


def _collect_data(data: Any, masks: dict[str, list[Tensor]], counts: list[int]) -> None:
    """Look into a PyG object; masks of several node or edge types are told apart by type."""
    for store in data.stores:
        of_type = getattr(store, "_key", None)
        for name, kind in _MASKS.items():
            mask = store.get(name) if hasattr(store, "get") else None
            if isinstance(mask, Tensor):
                named = kind if of_type is None else f"{kind} of {of_type!r}"
                masks.setdefault(named, []).append(mask)
    count = getattr(data, "_num_graphs", None)
    ptr = None if count is not None else data.to_dict().get("ptr")
    if isinstance(ptr, Tensor):
        count = len(ptr) - 1
    if isinstance(count, int):
        counts.append(count)
