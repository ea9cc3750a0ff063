"""PopTorch's optimisers: torch's own with the extra settings that programs pass.

The update itself is Torchkiln's (inside a program) or torch's (`step()` on the host).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch

from poptorch._logging import logger
from poptorch._optim_base import Optimizer, VariableAttributes, given
from torchkiln import runtime

_DEFAULT_MAX_WEIGHT_NORM = 65500.0


class SGD(Optimizer, torch.optim.SGD):
    """Stochastic gradient descent with momentum, weight decay and gradient clipping."""

    velocity_scaling: float

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        momentum: float | None = None,
        dampening: float | None = None,
        weight_decay: float | None = None,
        nesterov: bool | None = None,
        maximize: bool | None = None,
        foreach: bool | None = None,
        differentiable: bool | None = None,
        loss_scaling: float | None = None,
        velocity_scaling: float | None = None,
        use_combined_accum: bool | None = None,
        accum_type: torch.dtype | None = None,
        velocity_accum_type: torch.dtype | None = None,
        max_grad_norm: float | None = None,
    ) -> None:
        settings = given(
            momentum=momentum,
            dampening=dampening,
            weight_decay=weight_decay,
            nesterov=nesterov,
            maximize=maximize,
            foreach=foreach,
            differentiable=differentiable,
        )
        extras = {
            "loss_scaling": (loss_scaling, 1.0),
            "velocity_scaling": (velocity_scaling, 1.0),
            "use_combined_accum": (use_combined_accum, False),
            "accum_type": (accum_type, torch.float32),
            "velocity_accum_type": (velocity_accum_type, torch.float32),
            "max_grad_norm": (max_grad_norm, math.inf),
        }
        if velocity_scaling is not None and not use_combined_accum:
            logger.warning(
                "velocity_scaling only counts with use_combined_accum=True; it is ignored"
            )
        super().__init__(params, lr=lr, **settings)
        self._record(
            {"lr": lr, **settings},
            ("lr", "momentum", "dampening", "weight_decay", "nesterov"),
            extras,
        )
        if use_combined_accum:
            # The one extra of the original that belongs to a group.
            for group in self.param_groups:
                group.setdefault("velocity_scaling", self.velocity_scaling)


class Adam(Optimizer, torch.optim.Adam):
    """Adam with L2 weight decay and gradient clipping."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | None = None,
        betas: tuple[float, float] | None = None,
        eps: float | None = None,
        weight_decay: float | None = None,
        amsgrad: bool | None = None,
        foreach: bool | None = None,
        maximize: bool | None = None,
        capturable: bool | None = None,
        differentiable: bool | None = None,
        fused: bool | None = None,
        loss_scaling: float | None = None,
        accum_type: torch.dtype | None = None,
        first_order_momentum_accum_type: torch.dtype | None = None,
        second_order_momentum_accum_type: torch.dtype | None = None,
        max_grad_norm: float | None = None,
    ) -> None:
        settings = given(
            lr=lr,
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
            amsgrad=amsgrad,
            foreach=foreach,
            maximize=maximize,
            capturable=capturable,
            differentiable=differentiable,
            fused=fused,
        )
        extras = _moment_extras(
            loss_scaling,
            accum_type,
            first_order_momentum_accum_type,
            second_order_momentum_accum_type,
        )
        extras["max_grad_norm"] = (max_grad_norm, math.inf)
        super().__init__(params, **settings)
        self._record(settings, ("lr", "betas", "eps", "weight_decay", "amsgrad"), extras)


class AdamW(Optimizer, torch.optim.AdamW):
    """Adam with decoupled weight decay and gradient clipping."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | None = None,
        betas: tuple[float, float] | None = None,
        eps: float | None = None,
        weight_decay: float | None = None,
        amsgrad: bool | None = None,
        maximize: bool | None = None,
        foreach: bool | None = None,
        capturable: bool | None = None,
        differentiable: bool | None = None,
        fused: bool | None = None,
        loss_scaling: float | None = None,
        bias_correction: bool | None = None,
        accum_type: torch.dtype | None = None,
        first_order_momentum_accum_type: torch.dtype | None = None,
        second_order_momentum_accum_type: torch.dtype | None = None,
        max_grad_norm: float | None = None,
    ) -> None:
        settings = given(
            lr=lr,
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
            amsgrad=amsgrad,
            maximize=maximize,
            foreach=foreach,
            capturable=capturable,
            differentiable=differentiable,
            fused=fused,
        )
        extras = _moment_extras(
            loss_scaling,
            accum_type,
            first_order_momentum_accum_type,
            second_order_momentum_accum_type,
        )
        # As in the original, the correction stays on whatever is asked for.
        extras["bias_correction"] = (bias_correction, True)
        extras["max_grad_norm"] = (max_grad_norm, math.inf)
        super().__init__(params, **settings)
        self._record(settings, ("lr", "betas", "eps", "weight_decay", "amsgrad"), extras)


class RMSprop(Optimizer, torch.optim.RMSprop):
    """RMSprop, optionally in TensorFlow's variant (inside programs only)."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | None = None,
        alpha: float | None = None,
        eps: float | None = None,
        weight_decay: float | None = None,
        momentum: float | None = None,
        centered: bool | None = None,
        foreach: bool | None = None,
        maximize: bool | None = None,
        differentiable: bool | None = None,
        loss_scaling: float | None = None,
        accum_type: torch.dtype | None = None,
        first_order_momentum_accum_type: torch.dtype | None = None,
        second_order_momentum_accum_type: torch.dtype | None = None,
        use_tf_variant: bool | None = None,
    ) -> None:
        settings = given(
            lr=lr,
            alpha=alpha,
            eps=eps,
            weight_decay=weight_decay,
            momentum=momentum,
            centered=centered,
            foreach=foreach,
            maximize=maximize,
            differentiable=differentiable,
        )
        extras = _moment_extras(
            loss_scaling,
            accum_type,
            first_order_momentum_accum_type,
            second_order_momentum_accum_type,
        )
        extras["use_tf_variant"] = (use_tf_variant, False)
        super().__init__(params, **settings)
        self._record(
            settings, ("lr", "momentum", "weight_decay", "alpha", "eps", "centered"), extras
        )


class LAMB(Optimizer, runtime.LAMB):
    """Layer-wise adaptive moments for large batches."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | None = None,
        betas: tuple[float, float] | None = None,
        eps: float | None = None,
        weight_decay: float | None = None,
        bias_correction: bool | None = None,
        loss_scaling: float | None = None,
        max_weight_norm: float | None = None,
        accum_type: torch.dtype | None = None,
        first_order_momentum_accum_type: torch.dtype | None = None,
        second_order_momentum_accum_type: torch.dtype | None = None,
    ) -> None:
        settings = given(
            lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, max_weight_norm=max_weight_norm
        )
        extras = _moment_extras(
            loss_scaling,
            accum_type,
            first_order_momentum_accum_type,
            second_order_momentum_accum_type,
        )
        extras["bias_correction"] = (bias_correction, True)
        settings.setdefault("max_weight_norm", _DEFAULT_MAX_WEIGHT_NORM)
        super().__init__(params, **settings)
        if max_weight_norm is None:
            del settings["max_weight_norm"]
        self._record(settings, ("lr", "weight_decay", "betas", "eps", "max_weight_norm"), extras)


def _moment_extras(
    loss_scaling: float | None,
    accum_type: torch.dtype | None,
    first_order_momentum_accum_type: torch.dtype | None,
    second_order_momentum_accum_type: torch.dtype | None,
) -> dict[str, tuple[Any, Any]]:
    return {
        "loss_scaling": (loss_scaling, 1.0),
        "accum_type": (accum_type, torch.float32),
        "first_order_momentum_accum_type": (first_order_momentum_accum_type, torch.float32),
        "second_order_momentum_accum_type": (second_order_momentum_accum_type, torch.float32),
    }


__all__ = ["LAMB", "SGD", "Adam", "AdamW", "Optimizer", "RMSprop", "VariableAttributes"]
