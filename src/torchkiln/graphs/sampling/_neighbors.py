"""`NeighborSampler`: PyG's interface of samplers, without compiled packages."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, final

import numpy as np
import torch
from torch import Tensor
from torch_geometric.sampler import (
    BaseSampler,
    EdgeSamplerInput,
    HeteroSamplerOutput,
    NegativeSampling,
    NodeSamplerInput,
    SamplerOutput,
)
from torch_geometric.sampler.base import NumNeighbors, SubgraphType
from torch_geometric.sampler.neighbor_sampler import edge_sample, node_sample

from torchkiln.core import OptionsError
from torchkiln.graphs._spec import to_number
from torchkiln.graphs.sampling._neighbor_graph import EDGE, NODE, read_graph
from torchkiln.graphs.sampling._neighborhood import (
    Indices,
    Neighborhood,
    Rules,
    sample_neighborhood,
)


@final
class NeighborSampler(BaseSampler):  # type: ignore[misc]  # PyG has no types
    """Samples the neighbourhoods of nodes (or of edges' ends), uniformly or by weight.

    Use it wherever PyG takes a sampler, as in `NeighborLoader(data, num_neighbors,
    neighbor_sampler=NeighborSampler(data, num_neighbors))`. Seed nodes come first in the result.

    Args:
        data: `Data`, `HeteroData` or a (FeatureStore, GraphStore) pair.
        num_neighbors: Neighbours of each node in each hop; -1 takes all. A dict gives each edge
            type its own.
        subgraph_type: `directional` keeps the edges that were drawn, `bidirectional` adds their
            opposites, `induced` has all edges between the nodes that were reached.
        replace: Draw with replacement.
        disjoint: Give each seed node a neighbourhood of its own; always so with times.
        temporal_strategy: With times, draw among all earlier neighbours (`uniform`) or take the
            `last` ones.
        time_attr: Name of nodes' or edges' times; only neighbours not later than the seed count.
        weight_attr: Name of edges' weights; larger ones are drawn more often, 0 never.
        is_sorted: Edges are sorted by target already, and by time within a target.
        seed: With it, a sample is a function of `(seed, epoch, seed nodes)`, however many workers
            there are; see `set_epoch`. Without, torch's global generator decides, as in PyG.

    Raises:
        OptionsError: Arguments contradict each other or the data.
    """

    def __init__(
        self,
        data: Any,
        num_neighbors: Sequence[int] | Mapping[Any, Sequence[int]] | NumNeighbors,
        *,
        subgraph_type: SubgraphType | str = "directional",
        replace: bool = False,
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        time_attr: str | None = None,
        weight_attr: str | None = None,
        is_sorted: bool = False,
        seed: int | None = None,
    ) -> None:
        self._subgraph_type = SubgraphType(subgraph_type)
        induced = self._subgraph_type is SubgraphType.induced
        if temporal_strategy not in ("uniform", "last"):
            raise OptionsError(
                f"temporal_strategy must be 'uniform' or 'last', got {temporal_strategy!r}"
            )
        if time_attr is not None and induced:
            raise OptionsError(
                "subgraph_type='induced' would add edges that are later than the seed; use "
                f"'directional' together with time_attr={time_attr!r}"
            )
        self._graph = read_graph(
            data, time_attr=time_attr, weight_attr=weight_attr, is_sorted=is_sorted
        )
        self._num_neighbors = _to_counts(num_neighbors, list(self._graph.relations))
        self._rules = Rules(
            replace=replace,
            disjoint=disjoint or self._graph.is_temporal,
            latest=temporal_strategy == "last",
            induced=induced,
        )
        self._seed = seed
        self._epoch = 0

    @property
    def edge_permutation(self) -> Any:
        """From positions of edges in a sample to edges of the data; None where they agree."""
        permutation = self._graph.permutation
        return permutation if self._graph.is_hetero else permutation[EDGE]

    @property
    def disjoint(self) -> bool:
        return self._rules.disjoint

    @property
    def is_hetero(self) -> bool:
        return self._graph.is_hetero

    @property
    def num_nodes(self) -> dict[str, int]:
        """Nodes by type; those of a homogeneous graph have one type of their own."""
        return dict(self._graph.num_nodes)

    def set_epoch(self, epoch: int) -> None:
        """Draw other neighbours for the same seed nodes; has no effect without a seed."""
        self._epoch = epoch

    def sample_from_nodes(
        self, index: NodeSamplerInput, *, stream: int | None = None, **kwargs: Any
    ) -> SamplerOutput | HeteroSamplerOutput:
        """Return the sub-graph around the nodes of `index`.

        Args:
            index: The seed nodes.
            stream: Decides everything random, instead of the sampler's seed.
            **kwargs: What PyG passes to samplers of other kinds; unused.
        """
        if stream is None:
            stream = self._choose_stream(index.node)
        return self._finish(node_sample(index, self._sampling(stream)))

    def sample_from_edges(
        self, index: EdgeSamplerInput, neg_sampling: NegativeSampling | None = None
    ) -> SamplerOutput | HeteroSamplerOutput:
        """Return the sub-graph around both ends of the edges of `index`."""
        stream = self._choose_stream(index.row, index.col)
        graph = self._graph
        times = {kind: times.cpu() for kind, times in graph.node_times.items()} or None
        with self._seeded(stream):
            sampled = edge_sample(
                index,
                self._sampling(stream),
                graph.num_nodes if graph.is_hetero else graph.num_nodes[NODE],
                self.disjoint,
                times if graph.is_hetero or times is None else times[NODE],
                neg_sampling,
            )
        return self._finish(sampled)

    def _finish(self, sampled: Any) -> Any:
        if self._subgraph_type is SubgraphType.bidirectional:
            return sampled.to_bidirectional()
        return sampled

    def _choose_stream(self, *nodes: Tensor) -> int:
        if self._seed is None:
            return int(torch.empty((), dtype=torch.int64).random_().item())
        digest = hashlib.blake2b(digest_size=16)
        for tensor in nodes:
            digest.update(tensor.cpu().to(torch.int64).numpy().tobytes())
        return make_stream(self._seed, self._epoch, int.from_bytes(digest.digest(), "little"))

    @contextlib.contextmanager
    def _seeded(self, stream: int) -> Iterator[None]:
        """Let PyG draw its negative edges from the stream, if the sampler has a seed."""
        if self._seed is None:
            yield
            return
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(stream)
            yield

    def _sampling(self, stream: int) -> Any:
        def sample(seeds: Any, seed_times: Any = None, **_: Any) -> Any:
            if self._graph.is_hetero:
                return self._sample_hetero(seeds, seed_times, stream)
            times = None if seed_times is None else {NODE: seed_times}
            return self._sample_homogeneous({NODE: seeds}, times, stream)

        return sample

    def _sample_homogeneous(
        self, seeds: dict[str, Tensor], times: dict[str, Tensor] | None, stream: int
    ) -> SamplerOutput:
        found = self._sample(seeds, times, stream)
        return SamplerOutput(
            node=torch.from_numpy(found.nodes[NODE]),
            row=torch.from_numpy(found.rows[EDGE]),
            col=torch.from_numpy(found.columns[EDGE]),
            edge=torch.from_numpy(found.edges[EDGE]),
            batch=None if found.trees is None else torch.from_numpy(found.trees[NODE]),
            num_sampled_nodes=found.nodes_per_hop[NODE],
            num_sampled_edges=found.edges_per_hop.get(EDGE),
        )

    def _sample_hetero(
        self, seeds: dict[str, Tensor], times: dict[str, Tensor] | None, stream: int
    ) -> HeteroSamplerOutput:
        found = self._sample(seeds, times, stream)
        return HeteroSamplerOutput(
            node=_to_tensors(found.nodes),
            row=_to_tensors(found.rows),
            col=_to_tensors(found.columns),
            edge=_to_tensors(found.edges),
            batch=None if found.trees is None else _to_tensors(found.trees),
            num_sampled_nodes=found.nodes_per_hop,
            num_sampled_edges=found.edges_per_hop or None,
        )

    def _sample(
        self, seeds: dict[str, Tensor], times: dict[str, Tensor] | None, stream: int
    ) -> Neighborhood:
        nodes: dict[str, Indices] = {
            kind: value.cpu().to(torch.int64).numpy() for kind, value in seeds.items()
        }
        for kind, indices in nodes.items():
            _check_seeds(kind, indices, self._graph.num_nodes)
        seed_times = None
        if self._graph.is_temporal:
            seed_times = {
                kind: self._times_of(kind, indices, times).cpu().numpy()
                for kind, indices in nodes.items()
            }
        return sample_neighborhood(
            self._graph.relations,
            self._graph.num_nodes,
            self._num_neighbors,
            nodes,
            self._rules,
            stream=stream,
            seed_times=seed_times,
        )

    def _times_of(self, kind: str, nodes: Indices, times: dict[str, Tensor] | None) -> Tensor:
        if times is not None:
            return times[kind]
        if kind not in self._graph.node_times:
            raise OptionsError(
                f"the seed nodes{'' if kind == NODE else f' of type {kind!r}'} have no time of "
                "their own; pass input_time to the loader"
            )
        return self._graph.node_times[kind][torch.from_numpy(nodes)]


def make_stream(*key: int) -> int:
    """Return a 64-bit number for a key of numbers; other keys, unrelated numbers."""
    sequence = np.random.SeedSequence([part % 2**128 for part in key])
    return int(sequence.generate_state(1, np.uint64)[0]) % 2**63  # torch's seeds are signed


def _to_counts(num_neighbors: Any, keys: list[Any]) -> dict[Any, list[int]]:
    if isinstance(num_neighbors, int):
        raise OptionsError(
            f"num_neighbors is {num_neighbors}; pass one number for each hop, such as "
            f"[{num_neighbors}]"
        )
    if not isinstance(num_neighbors, NumNeighbors):
        num_neighbors = NumNeighbors(num_neighbors)
    if keys == [EDGE] and not isinstance(num_neighbors.values, dict):
        return {EDGE: _to_hops(num_neighbors.values)}
    return {key: _to_hops(hops) for key, hops in num_neighbors.get_values(keys).items()}


def _to_hops(hops: Iterable[Any]) -> list[int]:
    return [to_number("a number of neighbors", count) for count in hops]


def _to_tensors(arrays: Mapping[Any, Indices]) -> dict[Any, Tensor]:
    return {key: torch.from_numpy(array) for key, array in arrays.items()}


def _check_seeds(kind: str, seeds: Indices, num_nodes: Mapping[str, int]) -> None:
    if kind not in num_nodes:
        raise OptionsError(f"there are no nodes of type {kind!r}; types: {sorted(num_nodes)}")
    if seeds.ndim != 1:
        raise OptionsError(
            f"seed nodes must be one list of numbers, got an array of shape {list(seeds.shape)}; "
            "call flatten() on it"
        )
    outside = seeds[(seeds < 0) | (seeds >= num_nodes[kind])]
    if len(outside):
        raise OptionsError(
            f"seed node {outside[0]} is outside 0..{num_nodes[kind] - 1}; check input_nodes"
        )
