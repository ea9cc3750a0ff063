"""CTC loss with shapes that do not depend on the targets' lengths.

torch sizes its table of forward variables by the longest target of the batch, a value; behind a
custom operator nobody sees that table, and it is computed again in backward.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchkiln.torch_internals._libraries import ctc_backward, ctc_forward


@torch.library.custom_op("torchkiln::ctc_nll", mutates_args=())
def _ctc_nll(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    zero_infinity: bool,
) -> Tensor:
    nll, _ = ctc_forward(log_probs, targets, input_lengths, target_lengths, blank, zero_infinity)
    if zero_infinity:
        nll = torch.where(nll == float("inf"), torch.zeros_like(nll), nll)
    return nll.clone()


@_ctc_nll.register_fake
def _(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    zero_infinity: bool,
) -> Tensor:
    return log_probs.new_empty(log_probs.shape[1])


@torch.library.custom_op("torchkiln::ctc_grad", mutates_args=())
def _ctc_grad(
    grad: Tensor,
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    zero_infinity: bool,
) -> Tensor:
    nll, log_alpha = ctc_forward(
        log_probs, targets, input_lengths, target_lengths, blank, zero_infinity
    )
    return ctc_backward(
        grad.contiguous(),
        log_probs,
        targets,
        input_lengths,
        target_lengths,
        nll,
        log_alpha,
        blank,
        zero_infinity,
    )


@_ctc_grad.register_fake
def _(
    grad: Tensor,
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    zero_infinity: bool,
) -> Tensor:
    return torch.empty_like(log_probs, memory_format=torch.contiguous_format)


def _save_inputs(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    *tensors, ctx.blank, ctx.zero_infinity = inputs
    ctx.save_for_backward(*tensors)


def _backward(ctx, grad):  # type: ignore[no-untyped-def]
    result = _ctc_grad(grad, *ctx.saved_tensors, ctx.blank, ctx.zero_infinity)
    return result, None, None, None, None, None


_ctc_nll.register_autograd(_backward, setup_context=_save_inputs)


def static_ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """Same value and gradient as `torch.nn.functional.ctc_loss` for 2-D padded targets.

    Raises:
        ValueError: if `targets` is the concatenated 1-D form, whose layout depends on values, or
            `log_probs` has no batch dimension.
    """
    if targets.dim() != 2 or log_probs.dim() != 3:
        raise ValueError(
            f"a static CTC loss wants log_probs [T, B, C] and padded targets [B, S], got "
            f"{list(log_probs.shape)} and {list(targets.shape)}; pad the targets instead of "
            "concatenating them"
        )
    lengths = [
        torch.as_tensor(value, dtype=torch.long, device=targets.device)
        for value in (input_lengths, target_lengths)
    ]
    nll = _ctc_nll(log_probs, targets, *lengths, blank, zero_infinity)
    if reduction == "mean":
        return (nll / lengths[1].clamp(min=1).to(nll.dtype)).mean()
    return nll.sum() if reduction == "sum" else nll
