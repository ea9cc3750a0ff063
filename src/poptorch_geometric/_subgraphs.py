"""Padding of what the cluster and neighbour loaders take out of one large graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch_geometric.data import HeteroData

from poptorch_geometric.collate import original_errors
from poptorch_geometric.fixed_size_options import FixedSizeOptions
from poptorch_geometric.pyg_dataloader import OverSizeStrategy
from torchkiln.graphs._levels import FoundLevels
from torchkiln.graphs.batches._pad import MaskNames, pad_batch

_MASKS = MaskNames(node="nodes_mask", edge="edges_mask", graph="graphs_mask")


class SubgraphCollater:
    """Pads one sub-graph with one padding graph.

    Args:
        fixed_size_options: The sizes; numbers are expanded by type, in place, for heterogeneous
            sub-graphs.
        over_size_strategy: What to do with too large ones.
        add_pad_masks: Add `graphs_mask`, `nodes_mask` and `edges_mask`.
        levels: What attributes belong to, where the shape of a sub-graph could mislead.
        follow_batch: Attributes that get an assignment vector of their own.
        exclude_keys: Attributes to leave out.
    """

    def __init__(
        self,
        fixed_size_options: FixedSizeOptions,
        over_size_strategy: OverSizeStrategy,
        add_pad_masks: bool,
        levels: Mapping[str, str],
        follow_batch: Iterable[str] | None = None,
        exclude_keys: Iterable[str] | None = None,
    ) -> None:
        if not isinstance(over_size_strategy, OverSizeStrategy):
            raise NotImplementedError(f"Unknown over_size_strategy {over_size_strategy!r}")
        if fixed_size_options.num_graphs != 2:
            raise AssertionError(
                "A mini-batch is one sub-graph and one padding graph, so num_graphs of "
                f"fixed_size_options must be 2; got {fixed_size_options.num_graphs}"
            )
        self._options = fixed_size_options
        self._strategy = over_size_strategy
        self._masks = _MASKS if add_pad_masks else False
        self._levels = FoundLevels(levels)
        self._follow_batch = list(follow_batch or ())
        self._exclude_keys = list(exclude_keys or ())

    def __call__(self, data: Any, protected_nodes: int | Mapping[str, int] = 0) -> Any:
        """Return the padded batch; the first `protected_nodes` are never trimmed.

        Raises:
            AssertionError: if the options lack a type of the sub-graph.
            RuntimeError: if the sub-graph is too large.
        """
        if isinstance(data, HeteroData) and not self._options.is_hetero():
            self._options.to_hetero(data.node_types, data.edge_types)
        with original_errors():
            return pad_batch(
                [data],
                self._options.to_spec(),
                pad=self._options.to_pad_values(),
                defaults=self._options.pad_graph_defaults,
                masks=self._masks,
                trim_nodes=self._strategy.trims_nodes,
                trim_edges=self._strategy.trims_edges,
                protected_nodes=protected_nodes,
                levels=self._levels,
                follow_batch=self._follow_batch,
                exclude_keys=self._exclude_keys,
            )
