"""Torch's losses over the real rows of a padded batch, without an index that depends on values.

`loss(input[mask], target[mask])` has another shape for every batch, so a static program cannot
hold it. These functions return the same number, and the same gradients, from the whole batch.
Filler rows are replaced before anything is computed from them: NaN or huge values there change
neither the loss nor a gradient. Without any real row the loss is 0, and so are its gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import Tensor

from torchkiln.core import ArgumentError, to_choice

Reduction = Literal["mean", "sum", "none"]

_REDUCTIONS = ("mean", "sum", "none")
_HALVES = (torch.float16, torch.bfloat16)


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Return the mean of `values[mask]`, or 0 if no row is real.

    Args:
        values: [rows, ...].
        mask: True for real rows, [rows]; or one entry for each of the first dimensions of `values`.

    Raises:
        ArgumentError: The mask does not fit the values.
    """
    return _reduce(values, _spread(mask, values), "mean")


def masked_mse_loss(
    input: Tensor, target: Tensor, mask: Tensor, *, reduction: Reduction = "mean"
) -> Tensor:
    """Return `F.mse_loss(input[mask], target[mask])`; arguments as `masked_l1_loss`."""
    return _difference_loss(F.mse_loss, input, target, mask, reduction)


def masked_l1_loss(
    input: Tensor, target: Tensor, mask: Tensor, *, reduction: Reduction = "mean"
) -> Tensor:
    """Return `F.l1_loss(input[mask], target[mask])`.

    Args:
        input: Predictions, [rows, ...].
        target: What they should be, of the same shape.
        mask: True for real rows, [rows]; or one entry for each of the first dimensions of `input`.
        reduction: "mean" over real entries, their "sum", or "none": entries as they are, 0 for
            filler.

    Raises:
        ArgumentError: Shapes do not fit together.
        OptionsError: There is no such reduction.
    """
    return _difference_loss(F.l1_loss, input, target, mask, reduction)


def masked_smooth_l1_loss(
    input: Tensor, target: Tensor, mask: Tensor, *, beta: float = 1.0, reduction: Reduction = "mean"
) -> Tensor:
    """Return `F.smooth_l1_loss(input[mask], target[mask], beta=beta)`; see `masked_l1_loss`."""
    return _difference_loss(F.smooth_l1_loss, input, target, mask, reduction, beta=beta)


def masked_huber_loss(
    input: Tensor,
    target: Tensor,
    mask: Tensor,
    *,
    delta: float = 1.0,
    reduction: Reduction = "mean",
) -> Tensor:
    """Return `F.huber_loss(input[mask], target[mask], delta=delta)`; see `masked_l1_loss`."""
    return _difference_loss(F.huber_loss, input, target, mask, reduction, delta=delta)


def masked_binary_cross_entropy_with_logits(
    input: Tensor,
    target: Tensor,
    mask: Tensor,
    *,
    weight: Tensor | None = None,
    pos_weight: Tensor | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    """Return `F.binary_cross_entropy_with_logits(input[mask], target[mask])`.

    Args:
        input: Logits, [rows, ...].
        target: Numbers from 0 to 1, of the same shape.
        mask: See `masked_l1_loss`.
        weight: A factor of each entry, of a shape that broadcasts to that of `input`.
        pos_weight: As torch's.
        reduction: See `masked_l1_loss`.
    """
    _require_same_shape(input, target)
    real = _spread(mask, input)
    if weight is not None:
        weight = torch.where(real, weight.expand_as(input), 0.0)
    losses = F.binary_cross_entropy_with_logits(
        _widen(torch.where(real, input, 0.0)),
        _widen(torch.where(real, target, 0.0)),
        weight,
        pos_weight=pos_weight,
        reduction="none",
    )
    return _reduce(losses, real, reduction).to(input.dtype)


def masked_cross_entropy(
    input: Tensor,
    target: Tensor,
    mask: Tensor,
    *,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: Reduction = "mean",
) -> Tensor:
    """Return `F.cross_entropy(input[mask], target[mask])`.

    Args:
        input: Logits, [rows, classes] or [rows, classes, ...].
        target: Classes, integers [rows, ...]; or probabilities, of the shape of `input`.
        mask: True for real rows, [rows]; or one entry for each of the first dimensions of classes.
        weight: Of each class; the mean is then the weighted one, as torch's.
        ignore_index: Rows of this class count as filler does.
        label_smoothing: As torch's.
        reduction: See `masked_l1_loss`.

    Raises:
        ArgumentError: Shapes do not fit together.
        OptionsError: There is no such reduction.
    """
    if input.dim() < 2:
        raise ArgumentError(
            f"masked_cross_entropy needs logits of shape [rows, classes], got {list(input.shape)}"
        )
    of_rows = (input.shape[0], *input.shape[2:])
    is_class = not target.is_floating_point()
    expected = of_rows if is_class else tuple(input.shape)
    if tuple(target.shape) != expected:
        raise ArgumentError(
            f"target has shape {list(target.shape)}, but logits of shape {list(input.shape)} need "
            f"{list(of_rows)} (integer classes) or {list(input.shape)} (probabilities)"
        )
    real = _spread(mask, input[:, 0])
    across = real.unsqueeze(1)
    logits = _widen(torch.where(across, input, 0.0))
    # Filler gets a class that there is: its own label may be any number.
    wanted = torch.where(real, target, 0) if is_class else torch.where(across, target, 0.0)
    if is_class:
        real = real & (wanted != ignore_index)
    else:
        wanted = _widen(wanted)
    losses = F.cross_entropy(
        logits,
        wanted,
        None if weight is None else _widen(weight),
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        reduction="none",
    )
    if to_choice(_REDUCTIONS, reduction, "reduction") != "mean" or weight is None or not is_class:
        return _reduce(losses, real, reduction).to(input.dtype)
    # The weighted mean divides by the weights of the true classes.
    weights = torch.where(real, _widen(weight)[torch.where(real, wanted, 0)], 0.0).sum()
    total = torch.where(real, losses, 0.0).sum()
    return (total / torch.where(real.any(), weights, 1.0)).to(input.dtype)


def _difference_loss(
    loss: Callable[..., Tensor],
    input: Tensor,
    target: Tensor,
    mask: Tensor,
    reduction: Reduction,
    **settings: Any,
) -> Tensor:
    """Return a loss that is 0 where input and target are equal, as they are made for filler."""
    _require_same_shape(input, target)
    real = _spread(mask, input)
    wanted, given = (_widen(torch.where(real, part, 0.0)) for part in (target, input))
    if to_choice(_REDUCTIONS, reduction, "reduction") == "none":
        return loss(given, wanted, reduction="none", **settings).to(input.dtype)
    total = loss(given, wanted, reduction="sum", **settings)
    if reduction == "mean":
        total = total / _count(real, input)
    return total.to(input.dtype)


def _reduce(values: Tensor, real: Tensor, reduction: Reduction) -> Tensor:
    kept = torch.where(real, values, 0.0)
    if to_choice(_REDUCTIONS, reduction, "reduction") == "none":
        return kept
    total = _widen(kept).sum()
    if reduction == "mean":
        total = total / _count(real, values)
    return total.to(values.dtype)


def _count(real: Tensor, values: Tensor) -> Tensor:
    """Return how many entries of `values` are real, at least 1."""
    return (real.sum() * (values.numel() // real.numel())).clamp(min=1)


def _spread(mask: Tensor, values: Tensor) -> Tensor:
    """Return the mask with as many dimensions as `values`."""
    if mask.dtype is not torch.bool:
        raise ArgumentError(
            f"the mask must be of dtype torch.bool, got {mask.dtype}; True marks what is real"
        )
    if mask.dim() > values.dim() or mask.shape != values.shape[: mask.dim()] or not mask.dim():
        raise ArgumentError(
            f"a mask of shape {list(mask.shape)} does not fit values of shape "
            f"{list(values.shape)}; it has one entry for each row: graph_mask for values of "
            "graphs, node_mask for values of nodes, edge_mask for values of edges"
        )
    return mask.reshape(*mask.shape, *[1] * (values.dim() - mask.dim()))


def _require_same_shape(input: Tensor, target: Tensor) -> None:
    if input.shape != target.shape:
        raise ArgumentError(
            f"predictions have shape {list(input.shape)} and targets {list(target.shape)}; give "
            "both the same shape, or each would be compared with every other"
        )


def _widen(values: Tensor) -> Tensor:
    """Return halves as float32: sums over many rows would overflow, or lose digits."""
    return values.float() if values.dtype in _HALVES else values
