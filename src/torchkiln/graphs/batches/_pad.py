"""Padding a list of graphs to a fixed size, with PyG's own collation.

Slower than gathering from a `GraphStore`, and open to everything that PyG's `Batch` can join:
subclasses with their own `__inc__` and `__cat_dim__`, nested attributes, transforms.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchkiln.core import BatchTooLarge, OptionsError
from torchkiln.graphs._errors import GraphError
from torchkiln.graphs._filler import spread_filler
from torchkiln.graphs._levels import (
    Census,
    Level,
    Levels,
    StorageKey,
    cat_dim,
    check_alike,
    count,
    find_levels,
    is_hetero,
    store_at,
)
from torchkiln.graphs._padding_seen import mark_padded, note_padding
from torchkiln.graphs._spec import BatchSpec, PadValues
from torchkiln.graphs.batches import _trim

# Whatever the pad values are, filler is no part of a split.
_SPLITS = frozenset({"train_mask", "val_mask", "test_mask"})


@dataclass(frozen=True, slots=True)
class MaskNames:
    """The attributes that tell real entries (True) from filler."""

    node: str = "node_mask"
    edge: str = "edge_mask"
    graph: str = "graph_mask"


def pad_batch(
    graphs: Sequence[Any],
    spec: BatchSpec,
    *,
    pad: PadValues | None = None,
    defaults: Mapping[str, Any] | None = None,
    masks: bool | MaskNames = True,
    trim_nodes: bool = False,
    trim_edges: bool = False,
    protected_nodes: int | Mapping[str, int] = 0,
    levels: Mapping[str, str] | None = None,
    follow_batch: Iterable[str] | None = None,
    exclude_keys: Iterable[str] | None = None,
    like: Any = None,
    generator: torch.Generator | None = None,
) -> Any:
    """Return a PyG `Batch` of exactly `spec`: the graphs, then filler graphs.

    At least one graph, and one node of each type, stay filler, so a full batch looks like any
    other. Filler edges are self-loops on the first node of their graph. The given graphs are not
    changed. Runs on the host; not traceable.

    Args:
        graphs: `Data` or `HeteroData`, all of one class with the same attributes.
        spec: Sizes of the batch, filler included.
        pad: What filler holds. Attributes that number nodes point at filler whatever it says, and
            `train_mask`, `val_mask` and `test_mask` are False there.
        defaults: Values of filler graphs for attributes that are not tensors; without one, filler
            repeats the value of the first graph.
        masks: Add `node_mask`, `edge_mask` and `graph_mask` (or other names); True is real.
        trim_nodes: Leave out random nodes if there are too many, at least one a graph stays.
        trim_edges: Leave out random edges if there are too many.
        protected_nodes: The first nodes of every graph that trimming must not take, by type.
        levels: "node", "edge" or "graph" by attribute, where shapes cannot tell.
        follow_batch: As in PyG.
        exclude_keys: Attributes to leave out.
        like: A graph whose attributes filler imitates if `graphs` is empty.
        generator: Draws what trimming takes; None is torch's global one.

    Raises:
        BatchTooLarge: if graphs, nodes or edges do not fit.
        GraphError: if the graphs do not fit together, or have types that the spec lacks.
        OptionsError: if the spec is of the other kind, or a pad value does not fit a dtype.
    """
    from torch_geometric.data import Batch

    graphs = list(graphs)
    samples = graphs or ([] if like is None else [like])
    if not samples:
        raise GraphError("there is no graph to pad, and none to imitate; pass like=graph")
    excluded = frozenset(exclude_keys or ())
    check_alike(samples, excluded)
    if len(graphs) >= spec.num_graphs:
        raise BatchTooLarge(
            f"{len(graphs)} graphs leave no room for at least one padding graph in "
            f"num_graphs={spec.num_graphs}; raise num_graphs or put fewer graphs into a batch"
        )
    census = count(samples)
    sizes = _Sizes.of(spec, samples[0], census)
    found = find_levels(samples, census, exclude=excluded, given=levels)
    if trim_nodes:
        limits = {kind: size - 1 for kind, size in sizes.nodes.items()}
        shielded = _by_type(protected_nodes, limits)
        graphs = _trim.trim_nodes(
            graphs, census, found, limits, protected=shielded, generator=generator
        )
        census = count(graphs or samples)
    if trim_edges:
        graphs = _trim.trim_edges(graphs, census, found, sizes.edges, generator=generator)
        census = count(graphs or samples)
    real = census if graphs else _nothing(census)
    sizes.check(real, len(graphs))
    num_filler = spec.num_graphs - len(graphs)
    filler = _make_filler(samples[0], found, sizes, real, num_filler, pad, defaults)
    note_padding()
    batch = Batch.from_data_list(
        [*graphs, *filler], follow_batch=list(follow_batch or ()), exclude_keys=list(excluded)
    )
    names = masks if isinstance(masks, MaskNames) else MaskNames()
    if masks:
        _add_masks(batch, names, sizes, real, len(graphs), spec.num_graphs)
    for store in batch.stores:
        for value in store.values():
            if isinstance(value, Tensor):
                mark_padded(value, names.graph)
    return batch


@dataclass(frozen=True, slots=True)
class _Sizes:
    """The spec by store, in the form that graphs of this kind need."""

    nodes: dict[StorageKey, int]
    edges: dict[StorageKey, int]

    @classmethod
    def of(cls, spec: BatchSpec, sample: Any, census: Census) -> _Sizes:
        if is_hetero(sample) != spec.is_hetero:
            have, want = ("dicts by type", "numbers") if spec.is_hetero else ("numbers", "dicts")
            raise OptionsError(
                f"the spec has {have} and the graphs are {type(sample).__name__}, which need "
                f"{want}: num_nodes={spec.num_nodes!r}, num_edges={spec.num_edges!r}"
            )
        if isinstance(spec.num_nodes, Mapping) and isinstance(spec.num_edges, Mapping):
            return cls(
                _by_store("num_nodes", spec.num_nodes, census.nodes),
                _by_store("num_edges", spec.num_edges, census.edges),
            )
        assert isinstance(spec.num_nodes, int)
        assert isinstance(spec.num_edges, int)
        return cls({None: spec.num_nodes}, {None: spec.num_edges})

    def check(self, real: Census, num_graphs: int) -> None:
        """Raise `BatchTooLarge` unless everything fits and a node of each type is left."""
        for what, counts, limits, reserve in (
            ("nodes", real.nodes, self.nodes, 1),
            ("edges", real.edges, self.edges, 0),
        ):
            for kind, parts in counts.items():
                if sum(parts) + reserve > limits[kind]:
                    where = "" if kind is None else f" of type {kind!r}"
                    kept = f" ({reserve} of them stays filler)" if reserve else ""
                    raise BatchTooLarge(
                        "The fixed sizes given don't allocate enough space for the number of "
                        f"{what}{where} required: {num_graphs} graphs have {sum(parts)} and "
                        f"num_{what} is {limits[kind]}{kept}; raise num_{what}, put fewer graphs "
                        f"into a batch, or trim {what}"
                    )


def _by_store(
    name: str, given: Mapping[Any, int], present: Iterable[StorageKey]
) -> dict[StorageKey, int]:
    missing = [kind for kind in present if kind not in given]
    if missing:
        raise GraphError(f"{name} has no entry for the type {missing[0]!r} of the graphs; add one")
    return {kind: given[kind] for kind in present}


def _by_type(number: int | Mapping[str, int], kinds: Iterable[StorageKey]) -> dict[StorageKey, int]:
    if not isinstance(number, Mapping):
        return dict.fromkeys(kinds, number)
    return {kind: number.get(kind, 0) for kind in kinds if isinstance(kind, str)}


def _nothing(census: Census) -> Census:
    return Census({kind: [] for kind in census.nodes}, {kind: [] for kind in census.edges})


def _make_filler(
    sample: Any,
    levels: Levels,
    sizes: _Sizes,
    real: Census,
    num_graphs: int,
    pad: PadValues | None,
    defaults: Mapping[str, Any] | None,
) -> list[Any]:
    """Return filler graphs that bring a batch to its sizes; equal ones are one object."""
    left = {kind: sizes.nodes[kind] - sum(parts) for kind, parts in real.nodes.items()}
    nodes = {kind: spread_filler(total, 0, num_graphs)[0] for kind, total in left.items()}
    edges = {}
    for kind, parts in real.edges.items():
        ends = (kind[0], kind[2]) if isinstance(kind, tuple) else (None, None)
        hosts = min(left[end] for end in ends)
        edges[kind] = spread_filler(hosts, sizes.edges[kind] - sum(parts), num_graphs)[1]
    made: dict[tuple[int, ...], Any] = {}
    filler = []
    for index in range(num_graphs):
        num_nodes = {kind: int(shares[index]) for kind, shares in nodes.items()}
        num_edges = {kind: int(shares[index]) for kind, shares in edges.items()}
        form = (*num_nodes.values(), *num_edges.values())
        if form not in made:
            made[form] = _filler_graph(
                sample, levels, num_nodes, num_edges, pad or PadValues(), defaults or {}
            )
        filler.append(made[form])
    return filler


def _filler_graph(
    sample: Any,
    levels: Levels,
    num_nodes: Mapping[StorageKey, int],
    num_edges: Mapping[StorageKey, int],
    pad: PadValues,
    defaults: Mapping[str, Any],
) -> Any:
    graph = copy.copy(sample)
    for kind, names in levels.items():
        store = store_at(graph, kind)
        for name in [name for name in store if name not in names]:
            del store[name]  # excluded; PyG would count the sample's nodes by it
        for name, level in names.items():
            value = store_at(sample, kind)[name]
            if level is Level.CONSTANT:
                store[name] = defaults.get(name, value)
                continue
            shape = list(value.shape)
            if level is not Level.GRAPH:
                dim = cat_dim(sample, kind, name, value)
                assert dim is not None
                shape[dim] = num_nodes[kind] if level is Level.NODE else num_edges[kind]
            if _numbers_nodes(sample, kind, name, value):
                # 0 is the graph's first node. A graph without nodes borrows the last node of the
                # filler graph before it, to stay in range.
                has_nodes = level is Level.EDGE or all(num_nodes.values())
                filling: float = 0 if has_nodes else -1
            else:
                filling = pad_value(name, level, pad, value.dtype)
            store[name] = torch.full(shape, filling, dtype=value.dtype, device=value.device)
        if kind in num_nodes and ("num_nodes" in store or not _tells_num_nodes(names)):
            store["num_nodes"] = num_nodes[kind]
        if "num_edges" in store:
            store["num_edges"] = num_edges[kind]
    return graph


def _tells_num_nodes(names: Mapping[str, Level]) -> bool:
    """Whether PyG reads the number of nodes from a tensor, rather than guess it from edges."""
    return any(names.get(name) is Level.NODE for name in ("x", "pos"))


def _numbers_nodes(sample: Any, kind: StorageKey, name: str, value: Tensor) -> bool:
    if "batch" in name or value.is_floating_point():
        return False
    return bool(torch.as_tensor(sample.__inc__(name, value, store_at(sample, kind))).any())


def pad_value(name: str, level: Level, pad: PadValues, dtype: torch.dtype) -> float:
    if name in _SPLITS:
        return False
    chosen = {Level.NODE: pad.node, Level.EDGE: pad.edge, Level.GRAPH: pad.graph}[level]
    value = pad.attributes.get(name, chosen)
    if dtype is torch.bool:
        return bool(value)
    if dtype.is_floating_point or dtype.is_complex:
        fits = math.isfinite(torch.tensor(value, dtype=dtype).abs())
    else:
        limits = torch.iinfo(dtype)
        fits = limits.min <= value <= limits.max
        value = int(value)
    if not fits:
        raise OptionsError(
            f"the pad value {value:g} of attribute {name!r} does not fit its dtype {dtype}; give "
            f"it one of its own: attributes={{{name!r}: 0}}"
        )
    return value


def _add_masks(
    batch: Any, names: MaskNames, sizes: _Sizes, real: Census, num_real: int, num_graphs: int
) -> None:
    store_at(batch, None)[names.graph] = torch.arange(num_graphs) < num_real
    for kind, parts in real.nodes.items():
        store_at(batch, kind)[names.node] = torch.arange(sizes.nodes[kind]) < sum(parts)
    for kind, parts in real.edges.items():
        store_at(batch, kind)[names.edge] = torch.arange(sizes.edges[kind]) < sum(parts)
