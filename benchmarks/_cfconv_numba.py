"""The convolution with filters from a table in Numba: what Torchkiln's C++ is measured against.

It does less: every edge must go both ways, nothing is checked, and there is one derivative only.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

_njit = numba.njit(parallel=True, fastmath=True)


def parts_of(molecule_of_edge: np.ndarray, parts: int) -> np.ndarray:
    """Return where the edges of each part begin: equal shares, moved on to the next molecule."""
    num_edges = len(molecule_of_edge)
    shares = num_edges * np.arange(parts + 1) // parts
    last = molecule_of_edge[np.maximum(shares - 1, 0)]
    return np.where(shares > 0, np.searchsorted(molecule_of_edge, last, side="right"), 0)


@numba.njit(fastmath=True, inline="always")
def _place(distance: float, inverse: float, last_start: float) -> tuple:
    """Return the first of four rows and the weights of all four."""
    start = min(np.floor(distance * inverse), last_start)
    t = np.float32(distance * inverse - start)
    sixth, one, three = np.float32(1 / 6), np.float32(1), np.float32(3)
    rest = one - t
    return (
        int(start),
        rest * rest * rest * sixth,
        ((three * t - 6) * t * t + 4) * sixth,
        ((three - three * t) * t * t + three * t + one) * sixth,
        t * t * t * sixth,
    )


@_njit
def _convolve(x, table, distances, inverse, first, second, begins, out) -> None:  # type: ignore[no-untyped-def]
    last_start = np.float64(table.shape[0] - 4)
    for part in numba.prange(len(begins) - 1):
        for edge in range(begins[part], begins[part + 1]):
            row, w0, w1, w2, w3 = _place(distances[edge], inverse, last_start)
            t0, t1, t2, t3 = table[row], table[row + 1], table[row + 2], table[row + 3]
            x_a, x_b = x[first[edge]], x[second[edge]]
            to_a, to_b = out[first[edge]], out[second[edge]]
            for f in range(x.shape[1]):
                filter_ = w0 * t0[f] + w1 * t1[f] + w2 * t2[f] + w3 * t3[f]
                to_b[f] += filter_ * x_a[f]
                to_a[f] += filter_ * x_b[f]


@_njit
def _differentiate(  # type: ignore[no-untyped-def]
    x, grad, table, distances, inverse, first, second, begins, grad_x, grad_tables
) -> None:
    last_start = np.float64(table.shape[0] - 4)
    for part in numba.prange(len(begins) - 1):
        to_table = grad_tables[part]
        for edge in range(begins[part], begins[part + 1]):
            row, w0, w1, w2, w3 = _place(distances[edge], inverse, last_start)
            t0, t1, t2, t3 = table[row], table[row + 1], table[row + 2], table[row + 3]
            s0, s1, s2, s3 = to_table[row], to_table[row + 1], to_table[row + 2], to_table[row + 3]
            a, b = first[edge], second[edge]
            x_a, x_b, g_a, g_b, to_a, to_b = x[a], x[b], grad[a], grad[b], grad_x[a], grad_x[b]
            for f in range(x.shape[1]):
                filter_ = w0 * t0[f] + w1 * t1[f] + w2 * t2[f] + w3 * t3[f]
                to_a[f] += filter_ * g_b[f]
                to_b[f] += filter_ * g_a[f]
                product = x_a[f] * g_b[f] + x_b[f] * g_a[f]
                s0[f] += w0 * product
                s1[f] += w1 * product
                s2[f] += w2 * product
                s3[f] += w3 * product


class NumbaConvolution(torch.autograd.Function):
    """Sums of messages over pairs; `edges` is (distances, 1 / spacing, first, second, begins)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, table: Tensor, edges: tuple[Any, ...]) -> Tensor:
        ctx.save_for_backward(x, table)
        ctx.edges = edges
        out = torch.zeros_like(x)
        _convolve(x.detach().numpy(), table.detach().numpy(), *edges, out.numpy())
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, table = ctx.saved_tensors
        grad_x = torch.zeros_like(x)
        grad_tables = torch.zeros(len(ctx.edges[-1]) - 1, *table.shape)
        given = (x.detach().numpy(), grad.numpy(), table.detach().numpy())
        _differentiate(*given, *ctx.edges, grad_x.numpy(), grad_tables.numpy())
        return grad_x, grad_tables.sum(0), None
