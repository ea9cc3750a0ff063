"""`FixedSizeNeighborLoader`: sampled neighbourhoods of one large graph as batches of fixed size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np
import torch
from torch import Tensor

from torchkiln.core import BatchTooLarge, Options, OptionsError
from torchkiln.data import LoaderMode
from torchkiln.graphs._padding_seen import note_padding
from torchkiln.graphs._spec import BatchSpec, PadValues, to_number
from torchkiln.graphs.batches._combine import combine
from torchkiln.graphs.loaders._resumable import ResumableLoader
from torchkiln.graphs.loaders._subgraphs import (
    Finish,
    Group,
    GroupPlan,
    Sizes,
    estimate_spec,
    find_data_levels,
    measure,
    require_one_real_graph,
    to_trim,
)
from torchkiln.graphs.sampling._neighbor_graph import NODE
from torchkiln.graphs.sampling._neighbors import NeighborSampler, make_stream

_NUM_PROBES = 32
# Where the random numbers of probing come from: an epoch that no training reaches.
_PROBE_EPOCH = 2**62
# What PyG's loader adds that has another size, or another value, in every batch.
_VARYING = ("batch_size", "num_sampled_nodes", "num_sampled_edges", "seed_time", "input_id")
ADDED_LEVELS = {"n_id": "node", "e_id": "edge", "seed_mask": "node", "tree": "node"}


@final
class FixedSizeNeighborLoader(ResumableLoader):
    """Yields the sampled neighbourhood of `batch_size` seed nodes each, and one graph of filler.

    Every input node is a seed once in an epoch, over all processes. Seeds come first among the
    nodes (of their type); `seed_mask` marks them, since the last batch may have fewer. `n_id` and
    `e_id` are the numbers of nodes and edges in the whole graph; `input_id` `[batch_size]` is PyG's
    (places in `input_nodes`, or nodes if that is a mask), and -1 where there is no seed. A disjoint
    sample has `tree`, the seed that each node belongs to, which is `batch_size` for filler.

    Order and samples are functions of `(seed, epoch, process, number of processes)`, however many
    workers there are; each new iterator begins the next epoch.

    Args:
        data: `Data`, `HeteroData` or a (FeatureStore, GraphStore) pair.
        num_neighbors: See `NeighborSampler`.
        spec: Sizes of a batch, filler included; "auto" takes the largest that a number of sampled
            batches need, with a margin.
        batch_size: Seed nodes of a batch.
        input_nodes: Indices or mask of the seed nodes; None means all nodes. For
            `HeteroData` a type, or a pair of type and indices.
        input_time: Time of each input node; without it, their `time_attr` counts.
        options: The options of the program that consumes the batches. They say how many batches
            make a combined one, and which of several processes this is.
        shuffle: Draw another order of seeds in each epoch.
        seed: Decides the order, the samples, and what is trimmed.
        oversize: `trim` leaves out random nodes (never seeds) or edges of a batch that is too
            large; `error` raises `BatchTooLarge`.
        subgraph_type: See `NeighborSampler`, as for the next five.
        replace: Draw with replacement.
        disjoint: Give each seed a neighbourhood of its own.
        temporal_strategy: `uniform` or `last`.
        time_attr: Name of the times.
        weight_attr: Name of the edges' weights.
        transform: Is given each sampled graph and returns what is padded.
        pad: What filler holds.
        masks: Add `node_mask`, `edge_mask` and `graph_mask`.
        exclude_keys: Attributes to leave out.
        num_workers: Processes that make batches.
        mode: `sync`, or `async` to load ahead in a child process.
        async_options: Arguments of `AsyncPrefetcher`.

    Raises:
        OptionsError: Arguments contradict each other or the data.
    """

    def __init__(
        self,
        data: Any,
        num_neighbors: Sequence[int] | Mapping[Any, Sequence[int]],
        spec: BatchSpec | Literal["auto"] = "auto",
        *,
        batch_size: int,
        input_nodes: Any = None,
        input_time: Tensor | None = None,
        options: Options | None = None,
        shuffle: bool = False,
        seed: int = 0,
        oversize: Literal["trim", "error"] = "trim",
        subgraph_type: str = "directional",
        replace: bool = False,
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        time_attr: str | None = None,
        weight_attr: str | None = None,
        transform: Callable[[Any], Any] | None = None,
        pad: PadValues | None = None,
        masks: bool = True,
        exclude_keys: Iterable[str] = (),
        num_workers: int = 0,
        mode: LoaderMode | str = LoaderMode.SYNC,
        async_options: Mapping[str, Any] | None = None,
    ) -> None:
        from torch_geometric.loader import NodeLoader

        seed, batch_size = to_number("seed", seed), to_number("batch_size", batch_size)
        sampling = {
            "subgraph_type": subgraph_type,
            "replace": replace,
            "disjoint": disjoint,
            "temporal_strategy": temporal_strategy,
            "time_attr": time_attr,
            "weight_attr": weight_attr,
        }
        sampler = NeighborSampler(data, num_neighbors, **sampling)  # type: ignore[arg-type]
        if sampler.is_hetero and input_nodes is None:
            raise OptionsError(
                "a heterogeneous graph needs input_nodes: a node type, or (node type, indices)"
            )
        _check_mask(input_nodes, sampler.num_nodes)
        # PyG's loader looks up the attributes of what was sampled; it is never iterated.
        nodes = NodeLoader(
            data, sampler, input_nodes=input_nodes, input_time=input_time, transform=transform
        )
        take = _Sample(sampler, nodes, batch_size, seed)
        plan = GroupPlan(
            len(nodes.input_data.node), batch_size, options or Options(), seed, shuffle
        )
        like = take(Group(_PROBE_EPOCH, 0, np.arange(min(batch_size, plan.num_elements))))
        whole = None if isinstance(data, tuple | list) else data
        if spec == "auto":
            spec = estimate_spec(take.probe(plan), like if whole is None else whole)
        self._spec = require_one_real_graph(spec)
        num_seeds = min(batch_size, plan.num_elements)
        _check_room(self._spec, num_seeds, nodes.input_data.input_type)
        finish = Finish(
            self._spec,
            like=like,
            levels=find_data_levels(whole, ADDED_LEVELS),
            pad=_with_own(pad or PadValues(), batch_size),
            masks=masks,
            trim=to_trim(oversize),
            exclude_keys=tuple(exclude_keys),
        )
        note_padding()
        super().__init__(
            plan,
            _MakeBatch(take, finish),
            identity={
                **plan.identity(
                    like if whole is None else whole, nodes.input_data.node.numpy(), self._spec
                ),
                "num_neighbors": repr(num_neighbors),
                **sampling,
            },
            options=plan.options,
            num_workers=num_workers,
            mode=mode,
            async_options=async_options,
        )

    @property
    def spec(self) -> BatchSpec:
        """Sizes of every mini-batch."""
        return self._spec


@dataclass(frozen=True, slots=True)
class _Sample:
    """Samples the graph around a group of input nodes; holds nothing that varies in size."""

    sampler: NeighborSampler
    nodes: Any
    batch_size: int
    seed: int

    @property
    def input_type(self) -> str | None:
        kind: str | None = self.nodes.input_data.input_type
        return kind

    def __call__(self, group: Group) -> Any:
        inputs = self.nodes.input_data[torch.from_numpy(group.elements)]
        stream = make_stream(self.seed, group.epoch, group.number)
        graph = self.nodes.filter_fn(self.sampler.sample_from_nodes(inputs, stream=stream))
        drop_varying(graph)
        seeds = self._store(graph)
        seeds["seed_mask"] = torch.arange(seeds.num_nodes) < len(group.elements)
        return graph

    def add_input_id(self, batch: Any, group: Group) -> None:
        """Add which input nodes the seeds are: neither one a node, nor one a graph."""
        input_id = torch.full((self.batch_size,), -1)
        inputs = self.nodes.input_data[torch.from_numpy(group.elements)]
        input_id[: len(group.elements)] = inputs.input_id
        self._store(batch)["input_id"] = input_id

    def probe(self, plan: GroupPlan) -> Iterator[Sizes]:
        """Yield the sizes of some samples, of seeds in random order."""
        rng = np.random.default_rng((self.seed % 2**64, _PROBE_EPOCH))
        for number in range(_NUM_PROBES):
            elements = rng.permutation(plan.num_elements)[: self.batch_size]
            yield measure(self(Group(_PROBE_EPOCH, number, elements)))

    def _store(self, graph: Any) -> Any:
        return graph.stores[0] if self.input_type is None else graph[self.input_type]


def flatten_indices(index: Any) -> Tensor:
    """Return indices, or lists of them, as one list; masks stand for the indices they mark."""
    parts = [torch.as_tensor(part) for part in ([index] if isinstance(index, Tensor) else index)]
    flat = [p.nonzero() if p.dtype == torch.bool else p for p in parts]
    return torch.cat([torch.empty(0, dtype=torch.long), *(p.reshape(-1).long() for p in flat)])


def drop_varying(graph: Any, keep: Iterable[str] = ()) -> None:
    """Remove from a sampled graph what has another size, or another value, each time.

    The seed of each node of a disjoint sample, `batch`, is named `tree`: a batch of graphs needs
    that name for itself.
    """
    for store in graph.stores:
        for name in set(_VARYING).difference(keep):
            if name in store:
                del store[name]
        if "batch" in store:
            store["tree"] = store["batch"]
            del store["batch"]


@dataclass(frozen=True, slots=True)
class _MakeBatch:
    take: _Sample
    finish: Finish

    def __call__(self, groups: tuple[Group, ...]) -> Any:
        return combine([self._make(group) for group in groups])

    def _make(self, group: Group) -> Any:
        num_seeds = len(group.elements)
        kind = self.take.input_type
        batch = self.finish(
            self.take(group) if num_seeds else None,
            make_stream(self.take.seed, group.epoch, group.number, 1),
            protected_nodes=num_seeds if kind is None else {kind: num_seeds},
        )
        self.take.add_input_id(batch, group)
        return batch


def _check_mask(input_nodes: Any, num_nodes: Mapping[str, int]) -> None:
    """Raise `OptionsError` for a mask of another graph: PyG takes what it happens to name."""
    kind, mask = input_nodes if isinstance(input_nodes, tuple) else (NODE, input_nodes)
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool or kind not in num_nodes:
        return
    if tuple(mask.shape) != (num_nodes[kind],):
        raise OptionsError(
            f"input_nodes is a mask of shape {list(mask.shape)}, but there are {num_nodes[kind]} "
            "nodes; pass a mask with one entry a node, or indices"
        )


def _check_room(spec: BatchSpec, num_seeds: int, kind: str | None) -> None:
    sizes = spec.num_nodes
    size = sizes.get(kind or "") if isinstance(sizes, Mapping) else sizes
    if size is None:
        raise OptionsError(f"num_nodes has no entry for the type {kind!r} of the seed nodes")
    if size <= num_seeds:
        raise BatchTooLarge(
            f"{num_seeds} seed nodes do not fit into num_nodes={size}, of which one stays filler; "
            "raise num_nodes or lower batch_size"
        )


def _with_own(pad: PadValues, batch_size: int) -> PadValues:
    """Return pad values that also suit what sampling adds; filler is a tree of its own."""
    own = {"tree": float(batch_size), "n_id": 0.0, "e_id": 0.0}
    attributes = {**own, **pad.attributes, "seed_mask": 0.0}
    return PadValues(node=pad.node, edge=pad.edge, graph=pad.graph, attributes=attributes)
