"""Large graphs as neighbour sampling reads them: PyG's data objects and stores as plain arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from torchkiln.core import OptionsError
from torchkiln.graphs.sampling._neighborhood import Relation

# The one node type and the one relation of a homogeneous graph.
NODE = "node"
EDGE = ("node", "to", "node")


@dataclass(frozen=True, slots=True)
class SampledGraph:
    """A graph in CSC form. `permutation` leads from a position there to the edge of the user."""

    relations: dict[Any, Relation]
    num_nodes: dict[str, int]
    permutation: dict[Any, Tensor | None]
    is_hetero: bool
    is_temporal: bool
    node_times: Mapping[str, Tensor]


def read_graph(
    data: Any, *, time_attr: str | None, weight_attr: str | None, is_sorted: bool
) -> SampledGraph:
    """Return the graph of a `Data`, a `HeteroData` or a pair of PyG's feature and graph store.

    Args:
        data: Where nodes and edges come from; edge attributes are looked up later.
        time_attr: Name of the nodes' or edges' times.
        weight_attr: Name of the edges' weights.
        is_sorted: Whether edges are sorted by target already (and by time within a target).

    Raises:
        OptionsError: An attribute is missing or has values that cannot be used.
    """
    from torch_geometric.data import Data, HeteroData

    if isinstance(data, Data):
        return _read_data(data, time_attr, weight_attr, is_sorted)
    if isinstance(data, HeteroData):
        return _read_hetero_data(data, time_attr, weight_attr, is_sorted)
    if isinstance(data, tuple | list) and len(data) == 2:
        if time_attr is not None or weight_attr is not None:
            raise OptionsError(
                f"time_attr={time_attr!r}, weight_attr={weight_attr!r}: times and weights are read "
                "from Data and HeteroData only, not from a feature store; build a data object"
            )
        return _read_stores(*data)
    raise OptionsError(
        "data must be a Data, a HeteroData or a (FeatureStore, GraphStore) pair, "
        f"got {type(data).__name__}"
    )


def _read_data(
    data: Any, time_attr: str | None, weight_attr: str | None, is_sorted: bool
) -> SampledGraph:
    node_time = edge_time = None
    if time_attr is not None:
        if time_attr not in data:
            raise _missing(time_attr, data)
        if data.is_node_attr(time_attr):
            node_time = data[time_attr]
        else:
            edge_time = data[time_attr]
    weight = None
    if weight_attr is not None:
        if weight_attr not in data:
            raise _missing(weight_attr, data)
        weight = data[weight_attr]
    num_nodes = {NODE: int(data.num_nodes)}
    _check_ends(data, (NODE, NODE), num_nodes)
    relation, permutation = _read_edges(data, (NODE, NODE), node_time, edge_time, weight, is_sorted)
    return SampledGraph(
        relations={EDGE: relation},
        num_nodes=num_nodes,
        permutation={EDGE: permutation},
        is_hetero=False,
        is_temporal=time_attr is not None,
        node_times={} if node_time is None else {NODE: node_time},
    )


def _read_hetero_data(
    data: Any, time_attr: str | None, weight_attr: str | None, is_sorted: bool
) -> SampledGraph:
    node_times: dict[str, Tensor] = {}
    edge_times: dict[Any, Tensor] = {}
    if time_attr is not None:
        node_times = {kind: s[time_attr] for kind, s in data.node_items() if time_attr in s}
        edge_times = {kind: s[time_attr] for kind, s in data.edge_items() if time_attr in s}
        if node_times and edge_times:
            raise OptionsError(
                f"{time_attr!r} is a time of nodes {sorted(node_times)} and of edges "
                f"{sorted(edge_times)}; give one of them another name"
            )
        if not node_times and not edge_times:
            raise _missing(time_attr, data)
    if weight_attr is not None and not any(weight_attr in store for store in data.edge_stores):
        raise _missing(weight_attr, data)
    num_nodes = {kind: int(data[kind].num_nodes) for kind in data.node_types}
    relations, permutation = {}, {}
    for key, store in data.edge_items():
        _check_ends(store, (key[0], key[2]), num_nodes)
        relations[key], permutation[key] = _read_edges(
            store,
            (key[0], key[2]),
            node_times.get(key[0]),
            edge_times.get(key),
            None if weight_attr is None else store.get(weight_attr),
            is_sorted,
        )
    return SampledGraph(
        relations=relations,
        num_nodes=num_nodes,
        permutation=permutation,
        is_hetero=True,
        is_temporal=time_attr is not None,
        node_times=node_times,
    )


def _check_ends(store: Any, ends: tuple[str, str], num_nodes: dict[str, int]) -> None:
    """Raise `OptionsError` for an edge to no node: PyG and the kernels would write past arrays."""
    if "edge_index" not in store:
        return
    for nodes, kind in zip(store["edge_index"], ends, strict=True):
        most = num_nodes.get(kind, 0)
        if nodes.numel() and (int(nodes.min()) < 0 or int(nodes.max()) >= most):
            where = "" if kind == NODE else f" of type {kind!r}"
            raise OptionsError(
                f"edge_index has nodes from {int(nodes.min())} to {int(nodes.max())}{where}, but "
                f"there are {most}; correct it, or set num_nodes"
            )


def _read_edges(
    store: Any,
    ends: tuple[str, str],
    node_time: Tensor | None,
    edge_time: Tensor | None,
    weight: Tensor | None,
    is_sorted: bool,
) -> tuple[Relation, Tensor | None]:
    from torch_geometric.sampler.utils import to_csc

    offsets, sources, permutation = to_csc(
        store, device="cpu", is_sorted=is_sorted, src_node_time=node_time, edge_time=edge_time
    )
    times = edge_time
    if node_time is not None:
        # A neighbour's time is the time of the edge that leads to it: one rule for both.
        times = node_time[sources]
    elif edge_time is not None and permutation is not None:
        times = edge_time[permutation]
    if weight is not None and permutation is not None:
        weight = weight[permutation]
    relation = Relation(
        *ends,
        offsets=_to_indices(offsets),
        sources=_to_indices(sources),
        times=None if times is None else times.cpu().numpy(),
        weights=None if weight is None else _check_weights(weight, ends),
    )
    return relation, permutation


def _read_stores(features: Any, graph: Any) -> SampledGraph:
    attributes = graph.get_all_edge_attrs()
    is_hetero = any(attribute.edge_type is not None for attribute in attributes)
    if not is_hetero:
        sources, offsets, permutation = graph.csc()
        return _checked_sources(
            SampledGraph(
                relations={EDGE: Relation(NODE, NODE, _to_indices(offsets), _to_indices(sources))},
                num_nodes={NODE: len(offsets) - 1},
                permutation={EDGE: permutation},
                is_hetero=False,
                is_temporal=False,
                node_times={},
            )
        )
    from torch_geometric.data import remote_backend_utils

    all_sources, all_offsets, permutations = graph.csc()
    kinds = {attribute.group_name for attribute in features.get_all_tensor_attrs()}
    kinds |= {kind for key in all_sources for kind in (key[0], key[2])}
    return _checked_sources(
        SampledGraph(
            relations={
                key: Relation(key[0], key[2], _to_indices(all_offsets[key]), _to_indices(sources))
                for key, sources in all_sources.items()
            },
            num_nodes={
                kind: int(remote_backend_utils.num_nodes(features, graph, kind))
                for kind in sorted(kind for kind in kinds if isinstance(kind, str))
            },
            permutation=dict(permutations),
            is_hetero=True,
            is_temporal=False,
            node_times={},
        )
    )


def _checked_sources(graph: SampledGraph) -> SampledGraph:
    """Return `graph`, or raise `OptionsError` for an edge from no node."""
    for key, relation in graph.relations.items():
        most = graph.num_nodes.get(relation.source, 0)
        sources = relation.sources
        if len(sources) and (sources.min() < 0 or sources.max() >= most):
            raise OptionsError(
                f"the edges {key!r} of the graph store come from nodes {sources.min()} to "
                f"{sources.max()}, but there are {most}; correct them, or their size"
            )
    return graph


def _to_indices(tensor: Tensor) -> NDArray[np.int64]:
    return np.ascontiguousarray(tensor.cpu().numpy(), dtype=np.int64)


def _check_weights(weight: Tensor, ends: tuple[str, str]) -> NDArray[np.float64]:
    values = np.ascontiguousarray(weight.cpu().numpy(), dtype=np.float64)
    if values.ndim != 1 or not np.isfinite(values).all() or (values < 0).any():
        raise OptionsError(
            f"the weights of the edges from {ends[0]!r} to {ends[1]!r} must be one number an edge, "
            f"finite and not negative; got shape {values.shape}"
            + (f" with a minimum of {values.min()}" if values.size else "")
        )
    return values


def _missing(name: str, data: Any) -> OptionsError:
    return OptionsError(f"there is no attribute {name!r} in {data!r}")
