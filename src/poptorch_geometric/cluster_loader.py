"""Loads combined batches of merged clusters for models."""

from __future__ import annotations

from typing import Any

from torch_geometric.loader import ClusterData

import poptorch
from poptorch_geometric import pyg_cluster_loader
from poptorch_geometric.collate import CombinedBatchingCollater
from poptorch_geometric.fixed_size_options import FixedSizeOptions
from poptorch_geometric.pyg_dataloader import OverSizeStrategy


class FixedSizeClusterLoader(pyg_cluster_loader.FixedSizeClusterLoader, poptorch.DataLoader):
    """Merges clusters of a large graph, and pads them to one fixed size.

    Args:
        cluster_data: PyG's clusters.
        fixed_size_options: The sizes, for one sub-graph and one padding graph.
        batch_size: Clusters in a mini-batch.
        over_size_strategy: What to do with too large sub-graphs.
        add_pad_masks: Add `graphs_mask`, `nodes_mask` and `edges_mask`.
        options: Of the model that consumes the batches; None means the defaults.
        **kwargs: Of `poptorch.DataLoader`, but for `collate_fn`, `batch_sampler`, `shuffle` and
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
        options: poptorch.Options | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            cluster_data,
            fixed_size_options,
            batch_size,
            over_size_strategy,
            add_pad_masks,
            options=poptorch.Options() if options is None else options,
            **kwargs,
        )

    def _combining(self, collater: Any, mini_batch_size: int) -> Any:
        return CombinedBatchingCollater(collater, mini_batch_size)
