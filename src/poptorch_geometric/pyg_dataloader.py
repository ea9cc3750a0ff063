"""Loaders of fixed-size batches that know nothing of models and options: plain torch loaders."""

from __future__ import annotations

import enum
from typing import Any

import torch.utils.data
from torch.utils.data import RandomSampler
from torch_geometric.data import HeteroData

from poptorch_geometric._older_keywords import take_older_keywords
from poptorch_geometric.collate import FixedSizeCollater
from poptorch_geometric.fixed_size_options import FixedSizeOptions
from poptorch_geometric.pyg_collate import Collater
from poptorch_geometric.stream_packing_sampler import StreamPackingSampler

__all__ = ["DataLoader", "FixedSizeDataLoader", "FixedSizeStrategy", "OverSizeStrategy"]


class FixedSizeStrategy(enum.Enum):
    """How many real graphs a mini-batch gets."""

    PadToMax = 0  # always the same number, and one padding graph
    StreamPack = 1  # as many as fit, the rest are padding graphs


class OverSizeStrategy(enum.Enum):
    """What happens to samples that are too large.

    Under `StreamPack`, a sample that is trimmed has a mini-batch of its own.
    """

    Error = 0
    Skip = 1  # left out; StreamPack only
    TrimNodes = 2
    TrimEdges = 3
    TrimNodesAndEdges = 4

    @property
    def trims_nodes(self) -> bool:
        return self in (OverSizeStrategy.TrimNodes, OverSizeStrategy.TrimNodesAndEdges)

    @property
    def trims_edges(self) -> bool:
        return self in (OverSizeStrategy.TrimEdges, OverSizeStrategy.TrimNodesAndEdges)


class DataLoader(torch.utils.data.DataLoader):
    """PyG's loader.

    Args:
        dataset: Graphs (or anything that PyG collates).
        batch_size: Samples in a mini-batch.
        shuffle: Draw a new order for each pass.
        follow_batch: Attributes that get an assignment vector of their own.
        exclude_keys: Attributes to leave out.
        **kwargs: Of torch's loader; a `collate_fn` is ignored.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        shuffle: bool = False,
        follow_batch: list[str] | None = None,
        exclude_keys: list[str] | None = None,
        **kwargs: Any,
    ) -> None:
        kwargs.pop("collate_fn", None)
        self.follow_batch = follow_batch
        self.exclude_keys = exclude_keys
        mini_batch_size = None if kwargs.get("batch_sampler") is not None else batch_size
        collater = self._combining(Collater(follow_batch, exclude_keys), mini_batch_size)
        super().__init__(
            dataset=dataset, batch_size=batch_size, shuffle=shuffle, collate_fn=collater, **kwargs
        )

    def _combining(self, collater: Any, mini_batch_size: int | None) -> Any:
        """Return the collater of one item; a loader of combined batches wraps it."""
        return collater


class FixedSizeDataLoader(torch.utils.data.DataLoader):
    """Loads mini-batches of one fixed size.

    Args:
        dataset: Graphs.
        batch_size: Graphs in a mini-batch, the padding graph included.
        shuffle: Draw a new order for each pass.
        fixed_size_options: The sizes; None derives them from the dataset.
        fixed_size_strategy: Always `batch_size - 1` real graphs, or as many as fit.
        over_size_strategy: What to do with too large samples.
        add_pad_masks: Add `graphs_mask`, `nodes_mask` and `edges_mask`.
        follow_batch: Attributes that get an assignment vector of their own.
        exclude_keys: Attributes to leave out.
        **kwargs: Of the loader below; `batch_sampler` gives the samples of each mini-batch.

    Raises:
        ValueError: if `batch_size` is 1, or StreamPack comes with a `batch_sampler`.
        AssertionError: if `batch_size` is not `fixed_size_options.num_graphs`, or `collate_fn` is
            given.
        NotImplementedError: for an unknown strategy.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 2,
        shuffle: bool = False,
        fixed_size_options: FixedSizeOptions | None = None,
        fixed_size_strategy: FixedSizeStrategy = FixedSizeStrategy.PadToMax,
        over_size_strategy: OverSizeStrategy = OverSizeStrategy.Error,
        add_pad_masks: bool = True,
        follow_batch: list[str] | None = None,
        exclude_keys: list[str] | None = None,
        **kwargs: Any,
    ) -> None:
        older, collater_settings = take_older_keywords(kwargs, batch_size)
        if older is not None and fixed_size_options is not None:
            raise ValueError(
                "Sizes are given twice: by fixed_size_options and by num_nodes, num_edges or "
                "collater_args; keep fixed_size_options"
            )
        fixed_size_options = _check_sizes(dataset, batch_size, fixed_size_options or older)
        if "collate_fn" in kwargs:
            raise AssertionError(
                "FixedSizeDataLoader collates by itself and takes no collate_fn; use "
                "poptorch.DataLoader for your own"
            )
        if not isinstance(over_size_strategy, OverSizeStrategy):
            raise NotImplementedError(f"Unknown over_size_strategy {over_size_strategy!r}")
        self.padded_batch_size = batch_size
        self.fixed_size_options = fixed_size_options
        batch_sampler = kwargs.pop("batch_sampler", None)
        if fixed_size_strategy is FixedSizeStrategy.StreamPack:
            if batch_sampler is not None:
                raise ValueError("StreamPack decides what is batched; leave out batch_sampler")
            batch_sampler = _make_packing_sampler(
                dataset, fixed_size_options, shuffle, over_size_strategy
            )
        elif fixed_size_strategy is not FixedSizeStrategy.PadToMax:
            raise NotImplementedError(f"Unknown fixed_size_strategy {fixed_size_strategy!r}")
        if batch_sampler is None:
            kwargs.update(batch_size=batch_size - 1, shuffle=shuffle)
        else:
            kwargs.update(batch_sampler=batch_sampler)
        settings = {
            "add_masks_to_batch": add_pad_masks,
            "trim_nodes": over_size_strategy.trims_nodes,
            "trim_edges": over_size_strategy.trims_edges,
            **collater_settings,
        }
        collater = FixedSizeCollater(
            fixed_size_options, follow_batch=follow_batch, exclude_keys=exclude_keys, **settings
        )
        collater.read_levels_from(dataset)
        mini_batch_size = batch_size - 1 if batch_sampler is None else None
        super().__init__(
            dataset=dataset, collate_fn=self._combining(collater, mini_batch_size), **kwargs
        )

    def _combining(self, collater: Any, mini_batch_size: int | None) -> Any:
        """Return the collater of one item; a loader of combined batches wraps it."""
        return collater


def _check_sizes(
    dataset: Any, batch_size: int, options: FixedSizeOptions | None
) -> FixedSizeOptions:
    if batch_size < 2:
        raise ValueError(
            f"batch_size must be at least 2, for one real and one padding graph; got {batch_size}"
        )
    if options is None:
        return FixedSizeOptions.from_dataset(dataset, batch_size)
    if options.num_graphs != batch_size:
        raise AssertionError(
            f"batch_size {batch_size} must be num_graphs of fixed_size_options, which is "
            f"{options.num_graphs}: both count the padding graph"
        )
    return options


def _make_packing_sampler(
    dataset: Any, options: FixedSizeOptions, shuffle: bool, over_size: OverSizeStrategy
) -> StreamPackingSampler:
    def less_one(sizes: Any) -> Any:
        if isinstance(sizes, dict):
            return {kind: size - 1 for kind, size in sizes.items()}
        return sizes - 1

    sample = dataset[0]
    if isinstance(sample, HeteroData):
        options.to_hetero(sample.node_types, sample.edge_types)
    return StreamPackingSampler(
        dataset,
        max_num_graphs=options.num_graphs - 1,
        max_num_nodes=less_one(options.num_nodes),
        max_num_edges=less_one(options.num_edges),
        base_sampler=RandomSampler(dataset) if shuffle else None,
        allow_skip_data=over_size is OverSizeStrategy.Skip,
        keep_oversized=over_size.trims_nodes or over_size.trims_edges,
    )
