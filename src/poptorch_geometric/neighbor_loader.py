"""Loaders of sampled neighbourhoods: PyG's `NeighborLoader` with fixed-size mini-batches."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch.utils.data
from torch import Tensor
from torch_geometric.loader import NeighborLoader
from torch_geometric.sampler.base import SubgraphType

import poptorch
from poptorch_geometric._subgraphs import SubgraphCollater
from poptorch_geometric.collate import CombinedBatchingCollater
from poptorch_geometric.fixed_size_options import FixedSizeOptions
from poptorch_geometric.pyg_dataloader import OverSizeStrategy
from torchkiln.graphs.loaders._neighbor_loader import ADDED_LEVELS, drop_varying, flatten_indices
from torchkiln.graphs.loaders._subgraphs import find_data_levels


class PyGFixedSizeNeighborLoader(torch.utils.data.DataLoader):
    """Samples neighbourhoods of seed nodes, and pads each mini-batch to one fixed size.

    Seed nodes come first, and trimming never takes them. The form that knows nothing of models and
    options: a plain torch loader.

    Args:
        data: `Data`, `HeteroData`, or a (FeatureStore, GraphStore) pair.
        num_neighbors: Neighbours of each node in each hop.
        input_nodes: Seed nodes; for heterogeneous data a pair of type and nodes.
        input_time: Times of the seed nodes.
        subgraph_type: Which edges a mini-batch has.
        replace: Draw with replacement.
        directed: The older form of `subgraph_type`; False is `induced`.
        disjoint: Give each seed node a neighbourhood of its own.
        temporal_strategy: `uniform` or `last`.
        time_attr: Name of the times.
        transform: Applied to each sampled graph.
        transform_sampler_output: Applied to the sampler's output.
        is_sorted: Edges are sorted by target already.
        filter_per_worker: Accepted; acts as True.
        batch_size: Seed nodes in a mini-batch.
        neighbor_sampler: A sampler of your own.
        over_size_strategy: What to do with too large mini-batches.
        fixed_size_options: The sizes; None looks at 1000 samples.
        add_pad_masks: Add `graphs_mask`, `nodes_mask` and `edges_mask`.
        follow_batch: Attributes that get an assignment vector of their own.
        exclude_keys: Attributes to leave out.
        **kwargs: Of the loader below, such as `shuffle`, `drop_last` and `num_workers`.
    """

    def __init__(
        self,
        data: Any,
        num_neighbors: Any,
        input_nodes: Any = None,
        input_time: Tensor | None = None,
        subgraph_type: SubgraphType | str = SubgraphType.directional,
        replace: bool = False,
        directed: bool = True,
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        time_attr: str | None = None,
        transform: Callable[[Any], Any] | None = None,
        transform_sampler_output: Callable[[Any], Any] | None = None,
        is_sorted: bool = False,
        filter_per_worker: bool = True,
        batch_size: int = 1,
        neighbor_sampler: Any = None,
        over_size_strategy: OverSizeStrategy = OverSizeStrategy.TrimNodesAndEdges,
        fixed_size_options: FixedSizeOptions | None = None,
        add_pad_masks: bool = True,
        follow_batch: list[str] | None = None,
        exclude_keys: list[str] | None = None,
        **kwargs: Any,
    ) -> None:
        kwargs.pop("collate_fn", None)
        self.neighbour_loader = NeighborLoader(
            data,
            num_neighbors,
            input_nodes=input_nodes,
            input_time=input_time,
            subgraph_type=subgraph_type if directed else SubgraphType.induced,
            replace=replace,
            disjoint=disjoint,
            temporal_strategy=temporal_strategy,
            time_attr=time_attr,
            transform=transform,
            transform_sampler_output=transform_sampler_output,
            is_sorted=is_sorted,
            filter_per_worker=True,
            neighbor_sampler=neighbor_sampler,
            batch_size=batch_size,
            shuffle=kwargs.get("shuffle", False),
        )
        if fixed_size_options is None:
            fixed_size_options = FixedSizeOptions.from_loader(self.neighbour_loader)
        self.fixed_size_options = fixed_size_options
        whole = None if isinstance(data, tuple | list) else data
        self._pad = SubgraphCollater(
            fixed_size_options,
            over_size_strategy,
            add_pad_masks,
            find_data_levels(whole, ADDED_LEVELS),
            follow_batch,
            exclude_keys,
        )
        super().__init__(
            dataset=self.neighbour_loader.dataset,
            batch_size=batch_size,
            collate_fn=self._combining(self._collate, batch_size),
            **kwargs,
        )

    def nativeCollate(self, index: Any) -> Any:
        """Return the sample of PyG's loader for some of the input nodes, or lists of them."""
        return self.neighbour_loader(flatten_indices(index))

    def fixedSizeCollate(self, data: Any) -> Any:
        """Return a sample padded to the fixed size; it keeps `input_id`."""
        data = copy.copy(data)
        input_type = self.neighbour_loader.input_data.input_type
        seeds = _store(data, input_type)
        num_seeds, input_id = seeds["batch_size"], seeds.get("input_id")
        drop_varying(data)
        batch = self._pad(data, num_seeds if input_type is None else {input_type: num_seeds})
        # As long as there are seed nodes, which is no size of a node or graph attribute.
        seeds = _store(batch, input_type)
        if input_id is not None:
            seeds["input_id"] = input_id
        if input_type is not None:  # a homogeneous batch has another `batch_size` of its own
            seeds["batch_size"] = num_seeds
        return batch

    def _collate(self, index: list[int]) -> Any:
        return self.fixedSizeCollate(self.nativeCollate(index))

    def _combining(self, collater: Any, mini_batch_size: int) -> Any:
        """Return the collater of one item; a loader of combined batches wraps it."""
        return collater


class FixedSizeNeighborLoader(PyGFixedSizeNeighborLoader, poptorch.DataLoader):
    """Samples neighbourhoods of seed nodes, and pads each mini-batch to one fixed size.

    Seed nodes come first, and trimming never takes them.

    Args:
        data: `Data`, `HeteroData`, or a (FeatureStore, GraphStore) pair.
        num_neighbors: Neighbours of each node in each hop.
        input_nodes: Seed nodes; for heterogeneous data a pair of type and nodes.
        input_time: Times of the seed nodes.
        subgraph_type: Which edges a mini-batch has.
        replace: Draw with replacement.
        directed: The older form of `subgraph_type`; False is `induced`.
        disjoint: Give each seed node a neighbourhood of its own.
        temporal_strategy: `uniform` or `last`.
        time_attr: Name of the times.
        transform: Applied to each sampled graph.
        transform_sampler_output: Applied to the sampler's output.
        is_sorted: Edges are sorted by target already.
        filter_per_worker: Accepted; acts as True.
        batch_size: Seed nodes in a mini-batch.
        neighbor_sampler: A sampler of your own.
        over_size_strategy: What to do with too large mini-batches.
        fixed_size_options: The sizes; None looks at 1000 samples.
        add_pad_masks: Add `graphs_mask`, `nodes_mask` and `edges_mask`.
        follow_batch: Attributes that get an assignment vector of their own.
        exclude_keys: Attributes to leave out.
        options: Of the model that consumes the batches; None means the defaults.
        **kwargs: Of `poptorch.DataLoader`, such as `shuffle`, `drop_last` and `num_workers`.
    """

    def __init__(
        self,
        data: Any,
        num_neighbors: Any,
        input_nodes: Any = None,
        input_time: Tensor | None = None,
        subgraph_type: SubgraphType | str = SubgraphType.directional,
        replace: bool = False,
        directed: bool = True,
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        time_attr: str | None = None,
        transform: Callable[[Any], Any] | None = None,
        transform_sampler_output: Callable[[Any], Any] | None = None,
        is_sorted: bool = False,
        filter_per_worker: bool = True,
        batch_size: int = 1,
        neighbor_sampler: Any = None,
        over_size_strategy: OverSizeStrategy = OverSizeStrategy.TrimNodesAndEdges,
        fixed_size_options: FixedSizeOptions | None = None,
        add_pad_masks: bool = True,
        follow_batch: list[str] | None = None,
        exclude_keys: list[str] | None = None,
        options: poptorch.Options | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            data,
            num_neighbors,
            input_nodes,
            input_time,
            subgraph_type,
            replace,
            directed,
            disjoint,
            temporal_strategy,
            time_attr,
            transform,
            transform_sampler_output,
            is_sorted,
            filter_per_worker,
            batch_size,
            neighbor_sampler,
            over_size_strategy,
            fixed_size_options,
            add_pad_masks,
            follow_batch,
            exclude_keys,
            options=poptorch.Options() if options is None else options,
            **kwargs,
        )

    def _combining(self, collater: Any, mini_batch_size: int) -> Any:
        return CombinedBatchingCollater(collater, mini_batch_size)


def _store(data: Any, input_type: str | None) -> Any:
    return data.stores[0] if input_type is None else data[input_type]
