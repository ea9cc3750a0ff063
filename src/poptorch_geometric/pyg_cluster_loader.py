"""The cluster loader that knows nothing of models and options: a plain torch loader."""

from __future__ import annotations

from typing import Any

import torch.utils.data
from torch_geometric.loader import ClusterData, ClusterLoader

from poptorch_geometric._subgraphs import SubgraphCollater
from poptorch_geometric.fixed_size_options import FixedSizeOptions
from poptorch_geometric.pyg_dataloader import OverSizeStrategy
from torchkiln.graphs.loaders._subgraphs import find_data_levels

_UNSUPPORTED = ("collate_fn", "batch_sampler", "shuffle", "exclude_keys")


class FixedSizeClusterLoader(torch.utils.data.DataLoader):
    """Merges clusters of a large graph, and pads them to one fixed size.

    Args:
        cluster_data: PyG's clusters.
        fixed_size_options: The sizes, for one sub-graph and one padding graph.
        batch_size: Clusters in a mini-batch.
        over_size_strategy: What to do with too large sub-graphs.
        add_pad_masks: Add `graphs_mask`, `nodes_mask` and `edges_mask`.
        **kwargs: Of the loader below, but for `collate_fn`, `batch_sampler`, `shuffle` and
            `exclude_keys`.

    Raises:
        AssertionError: if `num_graphs` of the options is not 2, or for an unsupported argument.
    """

    def __init__(
        self,
        cluster_data: ClusterData,
        fixed_size_options: FixedSizeOptions,
        batch_size: int = 1,
        over_size_strategy: OverSizeStrategy = OverSizeStrategy.TrimNodesAndEdges,
        add_pad_masks: bool = True,
        **kwargs: Any,
    ) -> None:
        for name in _UNSUPPORTED:
            if name in kwargs:
                raise AssertionError(
                    f"FixedSizeClusterLoader does not support {name}; leave it out"
                )
        self.cluster_data = cluster_data
        self.fixed_size_options = fixed_size_options
        self._merge = ClusterLoader(cluster_data).collate_fn
        self._pad = SubgraphCollater(
            fixed_size_options,
            over_size_strategy,
            add_pad_masks,
            find_data_levels(cluster_data.data, {"edge_index": "edge"}),
        )
        indices: Any = range(len(cluster_data))
        super().__init__(
            dataset=indices,
            batch_size=batch_size,
            collate_fn=self._combining(self._collate, batch_size),
            **kwargs,
        )

    def _collate(self, indices: list[int]) -> Any:
        return self._pad(self._merge(indices))

    def _combining(self, collater: Any, mini_batch_size: int) -> Any:
        """Return the collater of one item; a loader of combined batches wraps it."""
        return collater
