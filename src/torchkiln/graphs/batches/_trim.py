"""Making graphs smaller: random nodes or edges are left out until a batch fits."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from torchkiln.core import BatchTooLarge
from torchkiln.graphs._errors import GraphError
from torchkiln.graphs._levels import Census, Level, Levels, StorageKey, cat_dim, store_at


def choose_kept(
    sizes: Sequence[int],
    limit: int,
    *,
    protected: int = 0,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Return a mask over all entries of graphs of the given sizes that keeps exactly `limit`.

    Every graph that has an entry keeps at least one; the first `protected` ones of a graph always
    stay. The rest is drawn at random (from torch's global generator by default).

    Raises:
        BatchTooLarge: if what must stay is already more than `limit`.
    """
    counts = torch.tensor(sizes)
    total = int(counts.sum())
    owner = torch.repeat_interleave(torch.arange(len(sizes)), counts)
    rank = torch.randperm(total, generator=generator)
    best = torch.full((len(sizes),), total).scatter_reduce(0, owner, rank, "amin")
    if protected:
        position = torch.arange(total) - (counts.cumsum(0) - counts)[owner]
        must = position < protected
    else:
        must = rank == best[owner]
    if int(must.sum()) > limit:
        raise BatchTooLarge(
            f"trimming to {limit} would empty graphs: {int(must.sum())} entries have to stay "
            f"({max(protected, 1)} for each of {len(sizes)} graphs); raise the size or put fewer "
            "graphs into a batch"
        )
    kept = torch.zeros(total, dtype=torch.bool)
    kept[torch.argsort(rank - total * must.long())[:limit]] = True
    return kept


def trim_nodes(
    graphs: Sequence[Any],
    census: Census,
    levels: Levels,
    limits: Mapping[StorageKey, int],
    *,
    protected: Mapping[StorageKey, int] | None = None,
    generator: torch.Generator | None = None,
) -> list[Any]:
    """Return graphs with at most `limits` nodes together: induced sub-graphs of the given ones.

    Types that fit are left alone. The given graphs are not changed; those that lose nothing are
    returned as they are.
    """
    kept: dict[StorageKey, list[Tensor]] = {}
    for kind, sizes in census.nodes.items():
        if sum(sizes) > limits[kind]:
            mask = choose_kept(
                sizes,
                limits[kind],
                protected=(protected or {}).get(kind, 0),
                generator=generator,
            )
            kept[kind] = list(torch.split(mask, sizes))
    if not kept:
        return list(graphs)
    trimmed = []
    for index, graph in enumerate(graphs):
        masks = {kind: parts[index] for kind, parts in kept.items()}
        masks = {kind: mask for kind, mask in masks.items() if not bool(mask.all())}
        trimmed.append(_induced(graph, levels, masks) if masks else graph)
    return trimmed


def trim_edges(
    graphs: Sequence[Any],
    census: Census,
    levels: Levels,
    limits: Mapping[StorageKey, int],
    *,
    generator: torch.Generator | None = None,
) -> list[Any]:
    """Return graphs with at most `limits` edges together; nodes stay."""
    trimmed = list(graphs)
    for kind, sizes in census.edges.items():
        if sum(sizes) <= limits[kind]:
            continue
        parts = torch.split(choose_kept(sizes, limits[kind], generator=generator), sizes)
        for index, mask in enumerate(parts):
            if not bool(mask.all()):
                graph = copy.copy(trimmed[index])
                _select(graph, levels, kind, Level.EDGE, mask)
                trimmed[index] = graph
    return trimmed


def _induced(graph: Any, levels: Levels, masks: Mapping[StorageKey, Tensor]) -> Any:
    """Return the sub-graph on the nodes that `masks` keep."""
    graph = copy.copy(graph)
    _refuse_indices(graph, levels)
    before = {kind: len(mask) for kind, mask in masks.items()}
    for kind, mask in masks.items():
        _select(graph, levels, kind, Level.NODE, mask)
    for kind in levels:
        store = store_at(graph, kind)
        if "edge_index" not in store:
            continue
        source, target = (kind[0], kind[2]) if isinstance(kind, tuple) else (None, None)
        ends = [
            (masks[end], row) if end in before else None
            for end, row in zip((source, target), store["edge_index"], strict=True)
        ]
        stays = torch.ones(store["edge_index"].shape[1], dtype=torch.bool)
        for end in ends:
            if end is not None:
                stays &= end[0][end[1]]
        _select(graph, levels, kind, Level.EDGE, stays)
        rows = list(store["edge_index"])
        for position, end in enumerate(ends):
            if end is not None:
                rows[position] = (end[0].cumsum(0) - 1)[rows[position]]
        store["edge_index"] = torch.stack(rows).to(store["edge_index"].dtype)
    return graph


def _select(graph: Any, levels: Levels, kind: StorageKey, level: Level, mask: Tensor) -> None:
    """Keep the entries that `mask` marks of all attributes of one level."""
    store = store_at(graph, kind)
    index = mask.nonzero().flatten()
    for name, found in levels[kind].items():
        if found is level:
            value = store[name]
            dim = cat_dim(graph, kind, name, value)
            assert dim is not None
            store[name] = value.index_select(dim, index)
    explicit = "num_nodes" if level is Level.NODE else "num_edges"
    if explicit in store:
        store[explicit] = len(index)


def _refuse_indices(graph: Any, levels: Levels) -> None:
    """Raise for attributes that number nodes: they would point at other ones afterwards."""
    for kind, names in levels.items():
        store = store_at(graph, kind)
        for name, level in names.items():
            if name == "edge_index" or level is Level.CONSTANT or "batch" in name:
                continue
            if bool(torch.as_tensor(graph.__inc__(name, store[name], store)).any()):
                raise GraphError(
                    f"attribute {name!r} numbers nodes, so graphs that have it cannot lose nodes; "
                    f"leave it out with exclude_keys=[{name!r}], raise num_nodes, or trim edges "
                    "only"
                )
