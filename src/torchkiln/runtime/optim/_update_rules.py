"""Optimiser maths as tensor operations whose hyper-parameters are inputs.

Each rule follows torch's optimiser of the same name. What depends on values (learning rate, decay,
bias correction) is computed on the host in float64, `num_hyper` scalars a step, and handed to the
program as a small tensor, so schedules never recompile. What changes the structure (momentum or
not, Nesterov, ...) is fixed when the rule is made.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from torchkiln.runtime.optim._state_dtypes import widened

Group = Mapping[str, Any]


class UpdateRule(abc.ABC):
    """How one kind of optimiser changes a parameter."""

    # How many scalars an update takes.
    num_hyper: ClassVar[int]

    @property
    @abc.abstractmethod
    def state_names(self) -> tuple[str, ...]:
        """Names of the tensors kept per parameter, as in torch's `optimizer.state`."""

    @property
    def has_step(self) -> bool:
        """Whether torch keeps a step counter per parameter."""
        return True

    def initial(self, name: str) -> float:
        """The value that a state tensor starts with."""
        return 0.0

    @abc.abstractmethod
    def hyper(self, group: Group, step: int) -> list[float]:
        """Return the `num_hyper` scalars of update number `step` (from 1)."""

    @abc.abstractmethod
    def update(
        self, param: Tensor, grad: Tensor, state: Mapping[str, Tensor], hyper: Sequence[Tensor]
    ) -> None:
        """Change `param` and `state` in place."""


def _widen(*tensors: Tensor) -> list[Tensor]:
    """Half precision is updated in float32 and rounded once, when it is written back."""
    return [widened(tensor) for tensor in tensors]


@dataclass(frozen=True, slots=True)
class SGDRule(UpdateRule):
    """Stochastic gradient descent with optional momentum."""

    num_hyper: ClassVar[int] = 4

    momentum: bool
    nesterov: bool
    maximize: bool

    @property
    def state_names(self) -> tuple[str, ...]:
        return ("momentum_buffer",) if self.momentum else ()

    @property
    def has_step(self) -> bool:
        return False

    def hyper(self, group: Group, step: int) -> list[float]:
        # torch starts the buffer with the plain gradient: dampening counts from the second step on.
        fresh = 1.0 if step == 1 else 1.0 - group["dampening"]
        return [group["lr"], group["weight_decay"], group["momentum"], fresh]

    def update(
        self, param: Tensor, grad: Tensor, state: Mapping[str, Tensor], hyper: Sequence[Tensor]
    ) -> None:
        lr, weight_decay, momentum, fresh = hyper
        value, grad = _widen(param, grad)
        grad = (-grad if self.maximize else grad) + weight_decay * value
        if self.momentum:
            (buffer,) = _widen(state["momentum_buffer"])
            buffer = momentum * buffer + fresh * grad
            state["momentum_buffer"].copy_(buffer)
            grad = grad + momentum * buffer if self.nesterov else buffer
        param.copy_(value - lr * grad)


@dataclass(frozen=True, slots=True)
class AdamRule(UpdateRule):
    """Adam; with `decoupled` the weight decay of AdamW."""

    num_hyper: ClassVar[int] = 7

    decoupled: bool
    amsgrad: bool
    maximize: bool
    bias_correction: bool = True

    @property
    def state_names(self) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq", *(("max_exp_avg_sq",) if self.amsgrad else ()))

    def hyper(self, group: Group, step: int) -> list[float]:
        lr, (beta1, beta2) = group["lr"], group["betas"]
        correction1, correction2 = _corrections(self.bias_correction, beta1, beta2, step)
        decay = 1.0 - lr * group["weight_decay"] if self.decoupled else group["weight_decay"]
        return [
            1 - beta1,
            beta2,
            1 - beta2,
            lr / correction1,
            correction2**0.5,
            group["eps"],
            decay,
        ]

    def update(
        self, param: Tensor, grad: Tensor, state: Mapping[str, Tensor], hyper: Sequence[Tensor]
    ) -> None:
        weight1, beta2, weight2, step_size, correction2, eps, decay = hyper
        value, grad, mean, square = _widen(param, grad, state["exp_avg"], state["exp_avg_sq"])
        grad = -grad if self.maximize else grad
        if self.decoupled:
            value = value * decay
        else:
            grad = grad + decay * value
        mean = mean + weight1 * (grad - mean)
        square = beta2 * square + weight2 * (grad * grad)
        largest = square
        if self.amsgrad:
            (before,) = _widen(state["max_exp_avg_sq"])
            largest = torch.maximum(before, square)
            state["max_exp_avg_sq"].copy_(largest)
        state["exp_avg"].copy_(mean)
        state["exp_avg_sq"].copy_(square)
        param.copy_(value - step_size * (mean / (largest.sqrt() / correction2 + eps)))


@dataclass(frozen=True, slots=True)
class RMSpropRule(UpdateRule):
    """RMSprop; `tf_variant` puts eps under the root and the learning rate into the momentum."""

    num_hyper: ClassVar[int] = 6

    momentum: bool
    centered: bool
    maximize: bool
    tf_variant: bool

    @property
    def state_names(self) -> tuple[str, ...]:
        return (
            "square_avg",
            *(("momentum_buffer",) if self.momentum else ()),
            *(("grad_avg",) if self.centered else ()),
        )

    def initial(self, name: str) -> float:
        return 1.0 if self.tf_variant and name == "square_avg" else 0.0

    def hyper(self, group: Group, step: int) -> list[float]:
        alpha = group["alpha"]
        return [
            group["lr"],
            group["weight_decay"],
            group["momentum"],
            alpha,
            1 - alpha,
            group["eps"],
        ]

    def update(
        self, param: Tensor, grad: Tensor, state: Mapping[str, Tensor], hyper: Sequence[Tensor]
    ) -> None:
        lr, weight_decay, momentum, alpha, weight, eps = hyper
        value, grad, square = _widen(param, grad, state["square_avg"])
        grad = (-grad if self.maximize else grad) + weight_decay * value
        square = alpha * square + weight * (grad * grad)
        state["square_avg"].copy_(square)
        if self.centered:
            (mean,) = _widen(state["grad_avg"])
            mean = mean + weight * (grad - mean)
            state["grad_avg"].copy_(mean)
            square = square - mean * mean
        scale = (square + eps).sqrt() if self.tf_variant else square.sqrt() + eps
        move = grad / scale
        if self.tf_variant:
            move = lr * move
        if self.momentum:
            (buffer,) = _widen(state["momentum_buffer"])
            move = momentum * buffer + move
            state["momentum_buffer"].copy_(move)
        param.copy_(value - (move if self.tf_variant else lr * move))


@dataclass(frozen=True, slots=True)
class LAMBRule(UpdateRule):
    """Adam's direction, scaled per parameter by the ratio of weight norm to update norm."""

    num_hyper: ClassVar[int] = 9

    bias_correction: bool

    STATE: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq")

    @property
    def state_names(self) -> tuple[str, ...]:
        return self.STATE

    def hyper(self, group: Group, step: int) -> list[float]:
        beta1, beta2 = group["betas"]
        correction1, correction2 = _corrections(self.bias_correction, beta1, beta2, step)
        return [
            1 - beta1,
            beta2,
            1 - beta2,
            1 / correction1,
            correction2**0.5,
            group["eps"],
            group["weight_decay"],
            group["lr"],
            group["max_weight_norm"],
        ]

    def update(
        self, param: Tensor, grad: Tensor, state: Mapping[str, Tensor], hyper: Sequence[Tensor]
    ) -> None:
        direction = self.direction(param, grad, state, hyper)
        value = widened(param)
        norms = torch.linalg.vector_norm(value), torch.linalg.vector_norm(direction)
        param.copy_(value - self.rate(*norms, hyper) * direction)

    def direction(
        self, param: Tensor, grad: Tensor, state: Mapping[str, Tensor], hyper: Sequence[Tensor]
    ) -> Tensor:
        """Change `state` in place and return where the parameter goes, in whatever length."""
        weight1, beta2, weight2, scale1, correction2, eps, decay, _, _ = hyper
        value, grad, mean, square = _widen(param, grad, state["exp_avg"], state["exp_avg_sq"])
        mean = mean + weight1 * (grad - mean)
        square = beta2 * square + weight2 * (grad * grad)
        state["exp_avg"].copy_(mean)
        state["exp_avg_sq"].copy_(square)
        return scale1 * mean / (square.sqrt() / correction2 + eps) + decay * value

    def rate(self, weight_norm: Tensor, update_norm: Tensor, hyper: Sequence[Tensor]) -> Tensor:
        """Return what a direction is multiplied with, from the norms of a parameter and of it."""
        *_, lr, max_norm = hyper
        weight_norm = torch.minimum(weight_norm, max_norm)
        usable = (weight_norm > 0) & (update_norm > 0)
        trust = torch.where(usable, weight_norm / update_norm, torch.ones_like(update_norm))
        return lr * trust


def _corrections(enabled: bool, beta1: float, beta2: float, step: int) -> tuple[float, float]:
    return (1 - beta1**step, 1 - beta2**step) if enabled else (1.0, 1.0)
