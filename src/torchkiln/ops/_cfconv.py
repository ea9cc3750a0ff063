"""Continuous-filter convolution over the edges of many small molecules."""

from __future__ import annotations

import torch
from torch import Tensor

from torchkiln.core import ArgumentError
from torchkiln.ops._cfconv_edges import check_edges
from torchkiln.ops._cfconv_operators import convolve, convolve_table

_MIN_KNOTS = 4


def cfconv(
    x: Tensor, filters: Tensor, edge_index: Tensor, batch: Tensor, ways: Tensor | None = None
) -> Tensor:
    """Return the sum at each node of its neighbours' features times the filters between them.

    Node `edge_index[1, e]` gets `filters[e] * x[edge_index[0, e]]`. With `ways`, an edge stands for
    a pair and says itself in which directions it counts. On the CPU this is one native kernel
    that gives the same bits for any number of threads; any order of derivatives.

    Args:
        x: Features, [num_nodes, num_features].
        filters: Filter of each edge, [num_edges, num_features].
        edge_index: Nodes of each edge, int64, [2, num_edges]. Edges stay within a molecule and are
            grouped by molecule, in the order of `batch`, as in batches of `FixedSizeLoader`.
        batch: Molecule of each node, int64, [num_nodes].
        ways: uint8, [num_edges]: 1 from row 0 to row 1, 2 from row 1 to row 0, 3 both, 0 none.
            None: all go from row 0 to row 1.

    Raises:
        ArgumentError: if shapes or dtypes do not fit, or edges are not grouped as said. Values are
            checked when the operation runs, on the CPU only.
    """
    _check_forms(x, edge_index, batch, ways)
    if filters.shape != (edge_index.shape[1], x.shape[1]) or filters.dtype != x.dtype:
        raise ArgumentError(
            f"filters must be [{edge_index.shape[1]}, {x.shape[1]}] of {x.dtype}, one row for each "
            f"edge, got {list(filters.shape)} of {filters.dtype}"
        )
    try:
        return convolve(x, filters, edge_index, batch, ways, False)
    except RuntimeError:
        check_edges(edge_index, batch)
        raise


def cfconv_table(
    x: Tensor,
    table: Tensor,
    distances: Tensor,
    edge_index: Tensor,
    batch: Tensor,
    ways: Tensor | None = None,
    *,
    spacing: float,
) -> Tensor:
    """Return `cfconv` with filters that are cubic splines of distance.

    The filter of an edge is a sum of the four B-splines around its distance. It is formed in
    registers: no tensor of [num_edges, num_features] exists, in either direction. A distance
    outside [0, (num_knots - 3) * spacing] is never extrapolated: its filter is 0. A distance of NaN
    gives NaN. Gradients flow to features, table and, where it requires them, distances.

    Args:
        x: Features, [num_nodes, num_features].
        table: Coefficients of the B-splines centred at -spacing, 0, spacing, ...,
            (num_knots - 2) * spacing, [num_knots, num_features]. At a knot the filter is a sixth of
            the coefficients beside it and two thirds of its own.
        distances: Distance of each edge, [num_edges].
        edge_index: As for `cfconv`.
        batch: As for `cfconv`.
        ways: As for `cfconv`.
        spacing: Between knots.

    Raises:
        ArgumentError: as `cfconv`; or if the table has fewer than 4 knots or no spacing.
    """
    _check_forms(x, edge_index, batch, ways)
    if table.dim() != 2 or table.shape[1] != x.shape[1] or table.dtype != x.dtype:
        raise ArgumentError(
            f"table must be [num_knots, {x.shape[1]}] of {x.dtype}, got {list(table.shape)} of "
            f"{table.dtype}"
        )
    if len(table) < _MIN_KNOTS or not spacing > 0:
        raise ArgumentError(
            f"a table needs at least {_MIN_KNOTS} knots and a positive spacing, got {len(table)} "
            f"knots with spacing {spacing}"
        )
    if distances.shape != edge_index.shape[1:] or distances.dtype != x.dtype:
        raise ArgumentError(
            f"distances must be [{edge_index.shape[1]}] of {x.dtype}, one for each edge, got "
            f"{list(distances.shape)} of {distances.dtype}"
        )
    place = (float(spacing), 0)
    try:
        return convolve_table(x, table, distances, None, edge_index, batch, ways, *place, False)
    except RuntimeError:
        check_edges(edge_index, batch)
        raise


def _check_forms(x: Tensor, edge_index: Tensor, batch: Tensor, ways: Tensor | None) -> None:
    """Check what does not depend on values, so also while a program is captured."""
    if x.dim() != 2 or not x.is_floating_point():
        raise ArgumentError(
            f"x must be [num_nodes, num_features] of a real dtype, got {list(x.shape)} of {x.dtype}"
        )
    if edge_index.dim() != 2 or edge_index.shape[0] != 2 or edge_index.dtype != torch.int64:
        raise ArgumentError(
            f"edge_index must be [2, num_edges] of int64, got {list(edge_index.shape)} of "
            f"{edge_index.dtype}"
        )
    if batch.shape != x.shape[:1] or batch.dtype != torch.int64:
        raise ArgumentError(
            f"batch must be [{x.shape[0]}] of int64, one for each node, got {list(batch.shape)} of "
            f"{batch.dtype}; for a single molecule pass zeros"
        )
    if ways is not None and (ways.shape != edge_index.shape[1:] or ways.dtype != torch.uint8):
        raise ArgumentError(
            f"ways must be [{edge_index.shape[1]}] of uint8, one for each edge, got "
            f"{list(ways.shape)} of {ways.dtype}"
        )
