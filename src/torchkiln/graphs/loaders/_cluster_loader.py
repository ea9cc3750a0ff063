"""`FixedSizeClusterLoader`: clusters of one large graph as batches of fixed size."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np

from torchkiln.core import Options, OptionsError
from torchkiln.data import LoaderMode
from torchkiln.graphs._padding_seen import note_padding
from torchkiln.graphs._spec import BatchSpec, PadValues, to_number
from torchkiln.graphs.batches._combine import combine
from torchkiln.graphs.loaders._resumable import ResumableLoader
from torchkiln.graphs.loaders._subgraphs import (
    MARGIN,
    Finish,
    Group,
    GroupPlan,
    estimate_spec,
    find_data_levels,
    require_one_real_graph,
    to_trim,
)
from torchkiln.graphs.sampling._clusters import Clusters
from torchkiln.graphs.sampling._neighbors import make_stream

_NUM_PROBES = 32


@final
class FixedSizeClusterLoader(ResumableLoader):
    """Yields batches of a few clusters each, joined into one sub-graph, and one graph of filler.

    Every cluster comes once in an epoch, over all processes. The order is a function of
    `(seed, epoch, process, number of processes)`; each new iterator begins the next epoch.

    Args:
        clusters: `Clusters`, PyG's `ClusterData`, or a `Data` to be divided into `num_parts`.
        spec: Sizes of a batch, filler included; "auto" takes the largest that a number of batches
            need, with a margin.
        num_parts: Clusters to make of a `Data`.
        clusters_per_batch: Clusters that a batch holds.
        options: The options of the program that consumes the batches. They say how many batches
            make a combined one, and which of several processes this is.
        shuffle: Draw other groups of clusters in each epoch.
        seed: Decides the order, the partition, and what is trimmed.
        oversize: `trim` leaves out random nodes or edges of a batch that is too large; `error`
            raises `BatchTooLarge`.
        pad: What filler holds.
        masks: Add `node_mask`, `edge_mask` and `graph_mask`.
        exclude_keys: Attributes to leave out.
        num_workers: Processes that make batches.
        mode: `sync`, or `async` to load ahead in a child process.
        async_options: Arguments of `AsyncPrefetcher`.

    Raises:
        OptionsError: Arguments contradict each other.
    """

    def __init__(
        self,
        clusters: Any,
        spec: BatchSpec | Literal["auto"] = "auto",
        *,
        num_parts: int | None = None,
        clusters_per_batch: int = 1,
        options: Options | None = None,
        shuffle: bool = False,
        seed: int = 0,
        oversize: Literal["trim", "error"] = "trim",
        pad: PadValues | None = None,
        masks: bool = True,
        exclude_keys: Iterable[str] = (),
        num_workers: int = 0,
        mode: LoaderMode | str = LoaderMode.SYNC,
        async_options: Mapping[str, Any] | None = None,
    ) -> None:
        seed = to_number("seed", seed)
        self._clusters = _to_clusters(clusters, num_parts, seed)
        plan = GroupPlan(
            len(self._clusters),
            to_number("clusters_per_batch", clusters_per_batch),
            options or Options(),
            seed,
            shuffle,
        )
        if spec == "auto":
            spec = _estimate(self._clusters, plan)
        self._spec = require_one_real_graph(spec)
        finish = Finish(
            self._spec,
            like=self._clusters[0],
            levels=find_data_levels(self._clusters.data, {"n_id": "node"}),
            pad=pad or PadValues(),
            masks=masks,
            trim=to_trim(oversize),
            exclude_keys=tuple(exclude_keys),
        )
        note_padding()
        super().__init__(
            plan,
            _MergeClusters(self._clusters, finish, seed),
            identity=plan.identity(self._clusters.data, self._clusters.assignment, self._spec),
            options=plan.options,
            num_workers=num_workers,
            mode=mode,
            async_options=async_options,
        )

    @property
    def spec(self) -> BatchSpec:
        """Sizes of every mini-batch."""
        return self._spec

    @property
    def clusters(self) -> Clusters:
        return self._clusters


@dataclass(frozen=True, slots=True)
class _MergeClusters:
    clusters: Clusters
    finish: Finish
    seed: int

    def __call__(self, groups: tuple[Group, ...]) -> Any:
        return combine([self._make(group) for group in groups])

    def _make(self, group: Group) -> Any:
        graph = self.clusters.merge(group.elements) if len(group.elements) else None
        return self.finish(graph, make_stream(self.seed, group.epoch, group.number))


def _to_clusters(source: Any, num_parts: int | None, seed: int) -> Clusters:
    from torch_geometric.loader import ClusterData

    if isinstance(source, Clusters | ClusterData):
        if num_parts is not None:
            raise OptionsError(
                f"num_parts={num_parts} was given together with {len(source)} clusters that exist "
                "already; leave it out, or pass the whole graph"
            )
        return source if isinstance(source, Clusters) else Clusters.from_pyg(source)
    if num_parts is None:
        raise OptionsError("a whole graph needs num_parts, the number of clusters to make of it")
    return Clusters.partition(source, num_parts, seed=seed)


def _estimate(clusters: Clusters, plan: GroupPlan) -> BatchSpec:
    """Return the sizes of the largest batches: exact for single clusters, else from a sample."""
    if plan.group_size == 1:
        groups = [np.array([index]) for index in range(len(clusters))]
    else:
        rng = np.random.default_rng((plan.seed % 2**64, len(clusters)))
        groups = [
            rng.permutation(len(clusters))[: plan.group_size].astype(np.int64)
            for _ in range(_NUM_PROBES)
        ]
    sizes = (clusters.measure(group) for group in groups)
    return estimate_spec(
        (({None: nodes}, {None: edges}) for nodes, edges in sizes),
        clusters.data,
        margin=0.0 if plan.group_size == 1 else MARGIN,
    )
