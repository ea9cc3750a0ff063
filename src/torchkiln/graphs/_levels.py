"""What belongs to a node, to an edge or to the whole graph: read from a list of graphs.

PyG decides by the shape of one graph. Here all graphs of a batch, or of a store, have a say, so
that a graph-level vector that happens to be as long as one graph has nodes is not taken for a node
attribute. `classify` is the one rule: lists of graphs and stores both ask it.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from torchkiln.core import OptionsError
from torchkiln.graphs._errors import GraphError

# A node type, an edge type, or None: the only store of a homogeneous graph, and the global store of
# a heterogeneous one.
StorageKey = str | tuple[str, str, str] | None


class Level(enum.Enum):
    """What one entry of an attribute describes."""

    NODE = "node"
    EDGE = "edge"
    GRAPH = "graph"
    CONSTANT = "constant"  # not a tensor


@dataclass(frozen=True, slots=True)
class Census:
    """Nodes and edges of every graph of a list, by type (None for homogeneous graphs)."""

    nodes: dict[StorageKey, list[int]]
    edges: dict[StorageKey, list[int]]


Levels = dict[StorageKey, dict[str, Level]]


@final
class FoundLevels(dict[str, str]):
    """Levels that were read off a large graph instead of said by the user.

    Its parts need not have all attributes, and nobody can be told to correct what was said.
    """


_NODE_NAMES = frozenset(
    {"x", "z", "feat", "pos", "batch", "n_id", "train_mask", "val_mask", "test_mask"}
)
_EDGE_NAMES = frozenset({"e_id"})


def is_hetero(graph: Any) -> bool:
    """Whether `graph` keeps its attributes by node and edge type."""
    from torch_geometric.data import HeteroData

    return isinstance(graph, HeteroData)


def stores_of(graph: Any) -> Iterator[tuple[StorageKey, Any]]:
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


def _known(num_nodes: int | None, index: int, kind: StorageKey) -> int:
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
        GraphError: for what has no fixed size (sparse tensors, other lengths in each graph), for
            levels that lengths contradict, and for entries of graphs with a single node or edge
            that could be anything.
        OptionsError: see `check_given`.
    """
    levels: Levels = {}
    given = given or {}
    check_given(given, {name for _, store in stores_of(graphs[0]) for name in store})
    is_found = isinstance(given, FoundLevels)
    for key, store in stores_of(graphs[0]):
        levels[key] = {}
        for name, value in store.items():
            if name in exclude:
                continue
            if not isinstance(value, Tensor):
                levels[key][name] = Level.CONSTANT
            else:
                levels[key][name] = find_level(
                    graphs, census, key, name, value, given=given.get(name), is_found=is_found
                )
    return levels


def check_given(given: Mapping[str, str], names: Collection[str]) -> None:
    """Look through levels that the user gives before graphs are read.

    Args:
        given: Levels by attribute.
        names: The attributes of all types, also those that are left out.

    Raises:
        OptionsError: One is no level, is that of no attribute, or cannot be chosen.
    """
    if isinstance(given, FoundLevels):
        return
    for name, level in given.items():
        _to_level(name, level)
        if name == "edge_index" and level != "edge":
            raise OptionsError(
                "levels['edge_index'] cannot be changed: it lists the edges; leave it out of levels"
            )
        if name not in names:
            raise OptionsError(
                f"levels[{name!r}] is that of no attribute: the graphs have "
                f"{', '.join(sorted(names)) or 'none'}; correct the name, or leave it out"
            )


def find_level(
    graphs: Sequence[Any],
    census: Census,
    key: StorageKey,
    name: str,
    value: Tensor,
    *,
    given: str | None = None,
    is_found: bool = False,
) -> Level:
    """Return the level of one tensor attribute; see `find_levels`."""
    if value.is_sparse or value.is_sparse_csr:
        raise GraphError(
            f"attribute {name!r} is a sparse matrix, which has no fixed size; keep edge_index (and "
            f"edge values) instead, or pass exclude_keys=[{name!r}]"
        )
    dim = cat_dim(graphs[0], key, name, value)
    if dim is None:
        return Level.GRAPH
    lengths = [store_at(graph, key)[name].shape[dim] for graph in graphs]
    nodes, edges = census.nodes.get(key), census.edges.get(key)
    level = classify(name, lengths, nodes=nodes, edges=edges, given=given, is_found=is_found)
    if level is Level.GRAPH and len(set(lengths)) > 1:
        raise no_fixed_size(key, name)
    return level


def no_fixed_size(key: StorageKey, name: str) -> GraphError:
    """Return the refusal of an attribute that is as long as it likes in each graph."""
    where = "" if key is None else f" of {key!r}"
    return GraphError(
        f"attribute {name!r}{where} follows neither nodes nor edges and has another size in each "
        f"graph, so no batch has a fixed size; leave it out with exclude_keys=[{name!r}]"
    )


def classify(
    name: str,
    lengths: ArrayLike,
    *,
    nodes: ArrayLike | None,
    edges: ArrayLike | None,
    given: str | None = None,
    is_found: bool = False,
) -> Level:
    """Return what the entries of a tensor attribute describe.

    Args:
        name: Of the attribute; decides if graphs have as many nodes as edges.
        lengths: Its entries in every graph, along the dimension in which graphs are joined.
        nodes: Nodes of every graph; None if the attribute is kept where there are none.
        edges: Edges of every graph; None likewise.
        given: What the user says ("node", "edge" or "graph").
        is_found: It was not the user who said it: see `FoundLevels`.

    Raises:
        GraphError: if nothing can tell, or `lengths` contradict what is given.
        OptionsError: if what is given is no level.
    """
    as_nodes = nodes is not None and _are_equal(lengths, nodes)
    as_edges = edges is not None and _are_equal(lengths, edges)
    # A name may be that of several types; what is said of nodes does not concern edges.
    elsewhere = (given == "node" and nodes is None) or (given == "edge" and edges is None)
    if given is not None and not elsewhere:
        return _checked(name, given, as_nodes=as_nodes, as_edges=as_edges, is_found=is_found)
    if as_edges and ("edge" in name or name in _EDGE_NAMES):
        return Level.EDGE
    if as_nodes and ("node" in name or name in _NODE_NAMES):
        return Level.NODE
    # The attributes of a type describe that type; of the rest, one entry a graph leaves a doubt.
    typed = nodes is None or edges is None
    if (as_nodes or as_edges) and not typed and np.all(np.asarray(lengths) == 1):
        say = f"pass levels={{{name!r}: 'graph'}} (or 'node', 'edge')"
        if is_found:
            say = "give it a name with 'node' or 'edge' in it"
        raise GraphError(
            f"every graph has one node or one edge, and attribute {name!r} has one entry: it could "
            f"describe that, or the graph; {say}, or leave it out with exclude_keys=[{name!r}]"
        )
    return Level.NODE if as_nodes else Level.EDGE if as_edges else Level.GRAPH


def _are_equal(lengths: ArrayLike, others: ArrayLike) -> bool:
    if isinstance(lengths, list) and isinstance(others, list):
        return lengths == others  # of a batch: NumPy would have to convert them first
    return np.array_equal(lengths, others)


def _to_level(name: str, given: str) -> Level:
    if given not in ("node", "edge", "graph"):
        raise OptionsError(
            f"levels[{name!r}] is {given!r}; an attribute has the level 'node', 'edge' or 'graph'"
        )
    return Level(given)


def _checked(name: str, given: str, *, as_nodes: bool, as_edges: bool, is_found: bool) -> Level:
    level = _to_level(name, given)
    fits = {Level.NODE: as_nodes, Level.EDGE: as_edges}.get(level, True)
    if not fits and is_found:
        raise GraphError(
            f"the transform changed the length of {name!r}, which describes {given}s; give the "
            f"result another name, or pass exclude_keys=[{name!r}]"
        )
    if not fits:
        raise GraphError(
            f"levels[{name!r}] is {given!r}, but the attribute does not have one entry for each "
            f"{given} in every graph; correct levels or the attribute"
        )
    return level


def cat_dim(graph: Any, key: StorageKey, name: str, value: Tensor) -> int | None:
    """Return the dim along which PyG joins an attribute; None if it stacks."""
    dim = graph.__cat_dim__(name, value, store_at(graph, key))
    return dim if isinstance(dim, int) and value.dim() else None


def store_at(graph: Any, key: StorageKey) -> Any:
    """Return the store of a type; for None the global, or only, one."""
    return graph.stores[0] if key is None else graph[key]
