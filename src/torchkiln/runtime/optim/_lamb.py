"""LAMB as a torch optimiser; programs and plain PyTorch share its update rule."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from torchkiln.checkpoints._precision import keep_state_precision
from torchkiln.runtime.optim._state_dtypes import read_state_dtypes
from torchkiln.runtime.optim._update_rules import LAMBRule


class LAMB(torch.optim.Optimizer):
    """Layer-wise adaptive moments for large batches.

    Args:
        params: Parameters or parameter groups.
        lr: Learning rate.
        betas: Decay of the running mean and of the running square of the gradient.
        eps: Added to the denominator.
        weight_decay: Decoupled decay, part of the direction whose norm is taken.
        bias_correction: Correct the running averages for their start at zero.
        max_weight_norm: Upper limit of the weight norm in the trust ratio.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        bias_correction: bool = True,
        max_weight_norm: float = 65500.0,
    ) -> None:
        for name, value in {"lr": lr, "eps": eps, "weight_decay": weight_decay}.items():
            if value < 0:
                raise ValueError(f"{name} must not be negative, got {value}")
        self.bias_correction = bias_correction
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "max_weight_norm": max_weight_norm,
        }
        super().__init__(params, defaults)
        keep_state_precision(self)

    def __getstate__(self) -> dict[str, Any]:
        # torch's own leaves out attributes that it does not know.
        return {**super().__getstate__(), "bias_correction": self.bias_correction}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        keep_state_precision(self)  # hooks are not part of copies

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the parameters from their `.grad`, as torch's optimisers do."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        rule = LAMBRule(self.bias_correction)
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    self._update(rule, group, param)
        return loss

    def _update(self, rule: LAMBRule, group: dict[str, Any], param: Tensor) -> None:
        state = self.state[param]
        if not state:
            state["step"] = torch.tensor(0.0)
            dtypes = read_state_dtypes(self)
            for name in rule.state_names:
                state[name] = torch.zeros_like(param, dtype=dtypes.of(name, param))
        state["step"] += 1
        dtype = torch.float64 if param.dtype == torch.float64 else torch.float32
        hyper = torch.tensor(
            rule.hyper(group, int(state["step"].item())), dtype=dtype, device=param.device
        )
        assert param.grad is not None
        rule.update(param, param.grad, state, hyper.unbind())
