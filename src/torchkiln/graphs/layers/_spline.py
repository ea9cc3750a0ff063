"""The B-splines of `SplineConv` in plain tensor operations: static, and without pyg-lib."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

# Values of the basis functions that are not zero between two knots, by degree; v is in [0, 1).
_BASES: dict[int, list[Callable[[Tensor], Tensor]]] = {
    1: [lambda v: 1 - v, lambda v: v],
    2: [lambda v: 0.5 * (1 - v) ** 2, lambda v: -v * v + v + 0.5, lambda v: 0.5 * v * v],
    3: [
        lambda v: (1 - v) ** 3 / 6,
        lambda v: (3 * v**3 - 6 * v * v + 4) / 6,
        lambda v: (-3 * v**3 + 3 * v * v + 3 * v + 1) / 6,
        lambda v: v**3 / 6,
    ],
}


def spline_basis(
    pseudo: Tensor, kernel_size: Tensor, is_open_spline: Tensor, degree: int
) -> tuple[Tensor, Tensor]:
    """Return values and kernel indices of all products of basis functions, [num_edges, count].

    `pseudo` holds coordinates in [0, 1]; `count` is (degree + 1) to the power of their number.
    """
    dims = pseudo.shape[1]
    scaled = pseudo * (kernel_size - degree * is_open_spline.long())
    knot = scaled.detach().floor()
    fraction = scaled - knot
    strides = torch.cat([kernel_size.new_ones(1), kernel_size.cumprod(0)[:-1]])
    values, indices = [], []
    for steps in itertools.product(range(degree + 1), repeat=dims):
        factors = [_BASES[degree][step](fraction[:, axis]) for axis, step in enumerate(steps)]
        values.append(torch.stack(factors).prod(dim=0))
        offset = knot.long() + torch.tensor(steps, device=pseudo.device)
        indices.append(((offset % kernel_size) * strides).sum(dim=-1))
    return torch.stack(values, dim=1), torch.stack(indices, dim=1)


def spline_weighting(x: Tensor, weight: Tensor, basis: Tensor, index: Tensor) -> Tensor:
    """Return `x` times the kernel's matrices, mixed by the basis: [num_edges, out_channels]."""
    return torch.einsum("ei,esio,es->eo", x, weight[index], basis.to(x.dtype))


def spline_message(self: Any, x_j: Tensor, edge_attr: Tensor) -> Tensor:
    """`SplineConv.message`."""
    basis = spline_basis(edge_attr, self.kernel_size, self.is_open_spline, self.degree)
    return spline_weighting(x_j, self.weight, *basis)
