"""Continuous-filter convolution in plain torch: for other devices and dtypes, and for tests."""

from __future__ import annotations

import torch
from torch import Tensor

from torchkiln.ops._cfconv_edges import Edges, Places

# Distances are rounded: one that was computed to be the last knot counts as that.
_ROUNDING = 1e-6


def convolve(x: Tensor, filters: Tensor, edges: Edges) -> Tensor:
    """Return the sum of messages at each node, [num_nodes, num_features]."""
    first, second = edges.edge_index
    forth, back = _directions(edges)
    out = torch.zeros_like(x)
    if forth is not None:
        out = out.index_add(0, second, torch.where(forth, filters * x[first], 0))
    if back is not None:
        out = out.index_add(0, first, torch.where(back, filters * x[second], 0))
    return out


def edge_products(x: Tensor, grad: Tensor, edges: Edges) -> Tensor:
    """Return x of where each message comes from times grad of where it goes, per edge."""
    first, second = edges.edge_index
    forth, back = _directions(edges)
    out = x.new_zeros((edges.edge_index.shape[1], x.shape[1]))
    if forth is not None:
        out = out + torch.where(forth, x[first] * grad[second], 0)
    if back is not None:
        out = out + torch.where(back, x[second] * grad[first], 0)
    return out


def interpolate(table: Tensor, places: Places) -> Tensor:
    """Return the filter of each edge, or a derivative of it by distance, [num_edges, num_features].

    The cubic spline with these coefficients; 0 where a distance is not covered.
    """
    rows, weights, covered = _find(places)
    filters = (weights.to(table.dtype)[:, :, None] * table[rows]).sum(1)
    return torch.where(covered[:, None], filters, 0)


def table_gradient(products: Tensor, places: Places) -> Tensor:
    """Return the transpose of `interpolate` applied to `products`, [num_knots, num_features]."""
    rows, weights, covered = _find(places)
    terms = weights.to(products.dtype)[:, :, None] * products[:, None, :]
    terms = torch.where(covered[:, None, None], terms, 0)
    out = products.new_zeros((places.num_knots, products.shape[1]))
    return out.index_add(0, rows.flatten(), terms.flatten(0, 1))


def _directions(edges: Edges) -> tuple[Tensor | None, Tensor | None]:
    """Return which edges carry a message from row 0 to row 1, and the other way; None for none."""
    if edges.ways is None:
        every = edges.edge_index.new_ones((edges.edge_index.shape[1], 1), dtype=torch.bool)
        return (None, every) if edges.reverse else (every, None)
    forth, back = ((edges.ways & bit).bool()[:, None] for bit in (1, 2))
    return (back, forth) if edges.reverse else (forth, back)


def _find(places: Places) -> tuple[Tensor, Tensor, Tensor]:
    """Return for each edge its four rows, their weights in float64, and whether it is covered."""
    place = places.distances.double() / places.spacing
    last = places.num_knots - 3
    covered = ~((place < 0) | (place > last * (1 + _ROUNDING)))  # True for NaN, which must show
    place = place.clamp(0, last)
    row = place.detach().nan_to_num().floor().clamp(0, last - 1)
    weights = _knot_weights(place - row, places.order) / places.spacing**places.order
    if places.scale is not None:
        weights = weights * places.scale.double()[:, None]
    return row.long()[:, None] + torch.arange(4, device=row.device), weights, covered


def _knot_weights(t: Tensor, order: int) -> Tensor:
    """Return the B-splines of knots at -1, 0, 1, 2 at t in [0, 1], or their derivatives."""
    forms = {
        0: lambda: (
            (1 - t) ** 3 / 6,
            ((3 * t - 6) * t * t + 4) / 6,
            (((-3 * t + 3) * t + 3) * t + 1) / 6,
            t**3 / 6,
        ),
        1: lambda: (
            -((1 - t) ** 2) / 2,
            (3 * t - 4) * t / 2,
            ((-3 * t + 2) * t + 1) / 2,
            t * t / 2,
        ),
        2: lambda: (1 - t, 3 * t - 2, 1 - 3 * t, t),
        3: lambda: (-1 + 0 * t, 3 + 0 * t, -3 + 0 * t, 1 + 0 * t),
    }
    return torch.stack(forms[order](), dim=1)
