"""Loaders of combined batches for models: PyG's loader and the fixed-size one, with options."""

from __future__ import annotations

from typing import Any

import poptorch
from poptorch_geometric import pyg_dataloader
from poptorch_geometric.collate import CombinedBatchingCollater
from poptorch_geometric.fixed_size_options import FixedSizeOptions
from poptorch_geometric.pyg_dataloader import FixedSizeStrategy, OverSizeStrategy

__all__ = ["DataLoader", "FixedSizeDataLoader", "FixedSizeStrategy", "OverSizeStrategy"]


class DataLoader(pyg_dataloader.DataLoader, poptorch.DataLoader):
    """PyG's loader with combined batches, for samples that have constant shapes already.

    Args:
        dataset: Graphs, all of one size (for example after PyG's `Pad` transform).
        batch_size: Samples in a mini-batch.
        shuffle: Draw a new order for each pass.
        follow_batch: Attributes that get an assignment vector of their own.
        exclude_keys: Attributes to leave out.
        options: Of the model that consumes the batches; None means the defaults.
        **kwargs: Of `poptorch.DataLoader`; a `collate_fn` is ignored.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        shuffle: bool = False,
        follow_batch: list[str] | None = None,
        exclude_keys: list[str] | None = None,
        options: poptorch.Options | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            follow_batch,
            exclude_keys,
            options=poptorch.Options() if options is None else options,
            **kwargs,
        )

    def _combining(self, collater: Any, mini_batch_size: int | None) -> Any:
        return CombinedBatchingCollater(collater, mini_batch_size)


class FixedSizeDataLoader(pyg_dataloader.FixedSizeDataLoader, poptorch.DataLoader):
    """Loads combined batches of mini-batches of one fixed size.

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
        options: Of the model that consumes the batches; None means the defaults.
        **kwargs: Of `poptorch.DataLoader`.
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
        options: poptorch.Options | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            fixed_size_options,
            fixed_size_strategy,
            over_size_strategy,
            add_pad_masks,
            follow_batch,
            exclude_keys,
            options=poptorch.Options() if options is None else options,
            **kwargs,
        )

    def _combining(self, collater: Any, mini_batch_size: int | None) -> Any:
        return CombinedBatchingCollater(collater, mini_batch_size)
