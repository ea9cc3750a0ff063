"""Collaters: samples to padded mini-batches, mini-batches to combined batches."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import Tensor
from torch_geometric.data import Data, HeteroData

from poptorch_geometric.fixed_size_options import FixedSizeOptions
from torchkiln.core import BatchTooLarge, OptionsError
from torchkiln.graphs._errors import GraphError
from torchkiln.graphs._levels import FoundLevels, Level, count, find_levels
from torchkiln.graphs.batches._combine import combine
from torchkiln.graphs.batches._pad import MaskNames, pad_batch

__all__ = ["CombinedBatchingCollater", "FixedSizeCollater", "make_exclude_keys"]

_MASKS = MaskNames(node="nodes_mask", edge="edges_mask", graph="graphs_mask")
_NUM_EXAMPLES = 100  # graphs of a dataset that are asked what an attribute belongs to


class FixedSizeCollater:
    """Joins a list of graphs into a batch of a fixed size, padding graphs last.

    There is always at least one padding graph with at least one node of each type, so a full
    batch has the same shapes as any other. The list and its graphs are not changed.

    Args:
        fixed_size_options: The sizes; numbers are expanded by type, in place, for heterogeneous
            samples.
        add_masks_to_batch: Add `graphs_mask`, `nodes_mask` and `edges_mask`; True is real.
        trim_nodes: Remove random nodes if there are too many.
        trim_edges: Remove random edges if there are too many.
        follow_batch: Attributes that get an assignment vector of their own.
        exclude_keys: Attributes to leave out.
    """

    def __init__(
        self,
        fixed_size_options: FixedSizeOptions,
        add_masks_to_batch: bool = False,
        trim_nodes: bool = False,
        trim_edges: bool = False,
        follow_batch: Iterable[str] | None = None,
        exclude_keys: Iterable[str] | None = None,
    ) -> None:
        self.fixed_size_options = fixed_size_options
        self.add_masks_to_batch = add_masks_to_batch
        self.trim_nodes = trim_nodes
        self.trim_edges = trim_edges
        self.follow_batch = list(follow_batch or ())
        self.exclude_keys = list(exclude_keys or ())
        self._dataset: Any = None

    def read_levels_from(self, dataset: Any) -> None:
        """Read from these graphs what attributes belong to where a mini-batch cannot tell.

        That is one of graphs with a single node or edge each: an attribute with one entry could
        describe it, or the graph.
        """
        if hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__"):
            self._dataset = dataset

    def __call__(self, data_list: list[Any]) -> Any:
        """Return the padded batch.

        Raises:
            TypeError: if `data_list` is not a list.
            AssertionError: if the samples do not fit together, or have labels of no level.
            RuntimeError: if they do not fit into the sizes.
        """
        if not isinstance(data_list, list):
            raise TypeError(f"Expected list, got {type(data_list).__name__}.")
        options = self.fixed_size_options
        if data_list and isinstance(data_list[0], HeteroData) and not options.is_hetero():
            options.to_hetero(data_list[0].node_types, data_list[0].edge_types)
        with original_errors():
            return pad_batch(
                data_list,
                options.to_spec(),
                pad=options.to_pad_values(),
                defaults=options.pad_graph_defaults,
                masks=_MASKS if self.add_masks_to_batch else False,
                trim_nodes=self.trim_nodes,
                trim_edges=self.trim_edges,
                levels=self._find_levels(data_list),
                follow_batch=self.follow_batch,
                exclude_keys=self.exclude_keys,
            )

    def _find_levels(self, data_list: list[Any]) -> FoundLevels:
        levels = self._label_level(data_list)
        if self._dataset is not None and _has_only_tiny_graphs(data_list):
            return FoundLevels({**self._dataset_levels, **levels})
        return FoundLevels(levels)

    @functools.cached_property
    def _dataset_levels(self) -> dict[str, str]:
        samples = [self._dataset[i] for i in range(min(len(self._dataset), _NUM_EXAMPLES))]
        excluded = {*self.exclude_keys, "y"}  # labels have a rule of their own
        found = find_levels(samples, count(samples), exclude=excluded)[None]
        return {name: level.value for name, level in found.items() if level is not Level.CONSTANT}

    def _label_level(self, data_list: list[Any]) -> dict[str, str]:
        """Return the level of `y`, by the original's rule: nodes or graphs, and no doubt."""
        labels: list[Any] = [
            data.get("y") if isinstance(data, Data) else None for data in data_list
        ]
        if "y" in self.exclude_keys or not all(isinstance(y, Tensor) for y in labels):
            return {}
        lengths = [y.shape[0] if y.dim() else 1 for y in labels]
        pairs = zip(lengths, data_list, strict=True)
        per_node = all(length == data.num_nodes for length, data in pairs)
        per_graph = set(lengths) == {1}
        if per_node == per_graph:
            found = "both" if per_node else "neither"
            raise AssertionError(
                "Labels y must have as many rows as nodes in every sample, or one row in every "
                f"sample; {found} is the case here, with rows {lengths[:10]}"
            )
        return {"y": "node" if per_node else "graph"}


class CombinedBatchingCollater:
    """Collates mini-batches one by one, and joins them along dim 0 without shifting indices.

    Args:
        collater: Makes a mini-batch of a list of samples.
        mini_batch_size: Samples in a mini-batch; None takes all that are given.
    """

    def __init__(
        self, collater: Callable[[list[Any]], Any], mini_batch_size: int | None = None
    ) -> None:
        self.collater = collater
        self.mini_batch_size = mini_batch_size

    def __call__(self, batch: list[Any]) -> Any:
        """Return the combined batch.

        Raises:
            AssertionError: if the samples do not fill whole mini-batches.
        """
        size = self.mini_batch_size or len(batch)
        if len(batch) % size:
            raise AssertionError(
                f"Invalid batch size: {len(batch)} samples are not a multiple of the mini-batch "
                f"size {size}; use drop_last=True"
            )
        return combine([self.collater(batch[i : i + size]) for i in range(0, len(batch), size)])


def _has_only_tiny_graphs(data_list: list[Any]) -> bool:
    if not all(isinstance(data, Data) for data in data_list):
        return False
    return all(data.num_nodes == 1 for data in data_list) or all(
        data.num_edges == 1 for data in data_list
    )


def make_exclude_keys(include_keys: Iterable[str], data: Any) -> tuple[str, ...]:
    """Return the keys of `data` that are not to be included."""
    # A method since PyG 2.4, a property before.
    keys = data.keys() if callable(data.keys) else data.keys
    included = set(include_keys)
    return tuple(key for key in keys if key not in included)


@contextlib.contextmanager
def original_errors() -> Iterator[None]:
    """Raise the exceptions that programs expect when graphs do not fit together or into a batch.

    Plain ones: loaders turn whatever else Torchkiln raises into `poptorch.Error`.
    """
    try:
        yield
    except GraphError as error:
        raise AssertionError(str(error)) from error
    except BatchTooLarge as error:
        raise RuntimeError(str(error)) from error
    except OptionsError as error:
        raise ValueError(str(error)) from error
