"""What belongs to a node, to an edge or to the whole graph: read from a list of graphs.

PyG decides by the shape of one graph. Here all graphs of a batch have a say, so that a graph-level
vector that happens to be as long as one graph has nodes is not taken for a node attribute.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from torchkiln.graphs._errors import GraphError

# A node type, an edge type, or None: the only store of a homogeneous graph, and the global store of
# a heterogeneous one.
StoreKey = str | tuple[str, str, str] | None


class Level(enum.Enum):
    """What one entry of an attribute describes."""

    NODE = "node"
    EDGE = "edge"
    GRAPH = "graph"
    CONSTANT = "constant"  # not a tensor


@dataclass(frozen=True, slots=True)
class Census:
    """Nodes and edges of every graph of a list, by type (None for homogeneous graphs)."""

    nodes: dict[StoreKey, list[int]]
    edges: dict[StoreKey, list[int]]


Levels = dict[StoreKey, dict[str, Level]]

_NODE_NAMES = frozenset(
    {"x", "z", "feat", "pos", "batch", "n_id", "train_mask", "val_mask", "test_mask"}
)
_EDGE_NAMES = frozenset({"e_id"})


def is_hetero(graph: Any) -> bool:
    """Whether `graph` keeps its attributes by node and edge type."""
    from torch_geometric.data import HeteroData

    return isinstance(graph, HeteroData)


def stores_of(graph: Any) -> Iterator[tuple[StoreKey, Any]]:
    """Yield the stores of a graph with their keys, the global one first."""
    keys = [None, *graph.node_types, *graph.edge_types] if is_hetero(graph) else [None]
    return zip(keys, graph.stores, strict=True)


def check_alike(graphs: Sequence[Any], exclude: Collection[str]) -> None:
    """Raise `GraphError` unless all graphs have the class, types and attributes of the first."""
    first = graphs[0]
    expected = {key: tuple(store) for key, store in stores_of(first)}
    hetero = is_hetero(first)
    for index, graph in enumerate(graphs):
        if not hetero and type(graph) is type(first) and tuple(graph.stores[0]) == expected[None]:
            continue  # the case of almost every graph
        if type(graph) is not type(first):
            raise GraphError(
                f"graph {index} is a {type(graph).__name__} and graph 0 a {type(first).__name__}; "
                "a batch needs graphs of one class"
            )
        stores = dict(stores_of(graph))
        if stores.keys() != expected.keys():
            kinds = sorted(map(str, stores.keys() ^ expected.keys()))
            raise GraphError(
                f"graph {index} has other node or edge types than graph 0: {', '.join(kinds)}; "
                "add empty ones where they are missing"
            )
        for key, names in expected.items():
            missing = [name for name in names if name not in stores[key] and name not in exclude]
            if missing:
                where = "" if key is None else f" of {key!r}"
                raise GraphError(
                    f"graph {index} has no attribute {missing[0]!r}{where}, which graph 0 has; add "
                    f"it, or pass exclude_keys=[{missing[0]!r}]"
                )


def count(graphs: Sequence[Any]) -> Census:
    """Return the sizes of all graphs; they must be alike."""
    if not is_hetero(graphs[0]):
        return _count_by_shape(graphs) or Census(
            {None: [_known(graph.num_nodes, index, None) for index, graph in enumerate(graphs)]},
            {None: [int(graph.num_edges) for graph in graphs]},
        )
    return Census(
        {
            kind: [_known(graph[kind].num_nodes, i, kind) for i, graph in enumerate(graphs)]
            for kind in graphs[0].node_types
        },
        {kind: [int(graph[kind].num_edges) for graph in graphs] for kind in graphs[0].edge_types},
    )


def _count_by_shape(graphs: Sequence[Any]) -> Census | None:
    """Return what PyG's properties find, several times as fast, where graphs are ordinary."""
    first = graphs[0].stores[0]
    x, edge_index = first.get("x"), first.get("edge_index")
    if not isinstance(x, Tensor) or not isinstance(edge_index, Tensor):
        return None
    dims = [cat_dim(graphs[0], None, n, v) for n, v in (("x", x), ("edge_index", edge_index))]
    if None in dims or "num_nodes" in first or "num_edges" in first:
        return None
    return Census(
        {None: [graph["x"].shape[dims[0]] for graph in graphs]},
        {None: [graph["edge_index"].shape[dims[1]] for graph in graphs]},
    )


def _known(num_nodes: int | None, index: int, kind: StoreKey) -> int:
    if num_nodes is None:
        where = "" if kind is None else f" of type {kind!r}"
        raise GraphError(
            f"graph {index} does not tell how many nodes{where} it has; set num_nodes on it"
        )
    return int(num_nodes)


def find_levels(
    graphs: Sequence[Any],
    census: Census,
    *,
    exclude: Collection[str] = (),
    given: Mapping[str, str] | None = None,
) -> Levels:
    """Return the level of every attribute.

    Args:
        graphs: At least one.
        census: Their sizes.
        exclude: Attributes to leave out.
        given: Levels ("node", "edge", "graph") by attribute name, where shapes cannot tell.

    Raises:
        GraphError: for sparse tensors, and for entries of graphs with a single node or edge that
            could be anything.
    """
    levels: Levels = {}
    given = given or {}
    for key, store in stores_of(graphs[0]):
        levels[key] = {}
        for name, value in store.items():
            if name in exclude:
                continue
            if not isinstance(value, Tensor):
                levels[key][name] = Level.CONSTANT
            elif name in given:
                levels[key][name] = Level(given[name])
            else:
                levels[key][name] = _find_level(graphs, census, key, name, value)
    return levels


def cat_dim(graph: Any, key: StoreKey, name: str, value: Tensor) -> int | None:
    """Return the dim along which PyG joins an attribute; None if it stacks."""
    dim = graph.__cat_dim__(name, value, store_at(graph, key))
    return dim if isinstance(dim, int) and value.dim() else None


def store_at(graph: Any, key: StoreKey) -> Any:
    """Return the store of a type; for None the global, or only, one."""
    return graph.stores[0] if key is None else graph[key]


def _find_level(
    graphs: Sequence[Any], census: Census, key: StoreKey, name: str, value: Tensor
) -> Level:
    if value.is_sparse or value.is_sparse_csr:
        raise GraphError(
            f"attribute {name!r} is a sparse matrix, which has no fixed size; keep edge_index (and "
            f"edge values) instead, or pass exclude_keys=[{name!r}]"
        )
    dim = cat_dim(graphs[0], key, name, value)
    if dim is None:
        return Level.GRAPH
    lengths = [store_at(graph, key)[name].shape[dim] for graph in graphs]
    as_nodes = key in census.nodes and lengths == census.nodes[key]
    as_edges = key in census.edges and lengths == census.edges[key]
    if key is not None:
        return Level.NODE if as_nodes else Level.EDGE if as_edges else Level.GRAPH
    edge_name = "edge" in name or name in _EDGE_NAMES
    if as_edges and edge_name:
        return Level.EDGE
    if as_nodes and (name in _NODE_NAMES or "node" in name):
        return Level.NODE
    if (as_nodes or as_edges) and set(lengths) == {1}:
        raise GraphError(
            f"every graph of the batch has one node or one edge, and attribute {name!r} has one "
            f"entry: it could describe that, or the graph; pass levels={{{name!r}: 'graph'}} (or "
            f"'node', 'edge'), or leave it out with exclude_keys=[{name!r}]"
        )
    return Level.NODE if as_nodes else Level.EDGE if as_edges else Level.GRAPH
