"""Gaussian negative log likelihood without torch's look at the values of the variance."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def static_gaussian_nll_loss(
    input: Tensor,
    target: Tensor,
    var: Tensor | float,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Tensor:
    """Same value and gradient as `torch.nn.functional.gaussian_nll_loss`.

    torch refuses negative variances by reading them, which a static program cannot; here they count
    as `eps`.
    """
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"reduction must be 'none', 'mean' or 'sum', got {reduction!r}")
    variance = var * torch.ones_like(input) if isinstance(var, float) else var
    if variance.shape == input.shape[:-1]:
        variance = variance.unsqueeze(-1)
    elif variance.shape != input.shape and variance.shape[:-1] != input.shape[:-1]:
        raise ValueError(
            f"var of shape {tuple(variance.shape)} does not fit input of shape "
            f"{tuple(input.shape)}; give one variance a value or a row"
        )
    # The gradient passes as if nothing was clamped, as in torch.
    variance = variance + (variance.clamp(min=eps) - variance).detach()
    loss = 0.5 * (variance.log() + (input - target).square() / variance)
    if full:
        loss = loss + 0.5 * math.log(2 * math.pi)
    if reduction == "mean":
        return loss.mean()
    return loss.sum() if reduction == "sum" else loss
