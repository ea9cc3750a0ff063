"""Finding the loss: which of forward's results the program differentiates.

While forward is recorded, results of torch's loss functions are marked, and so is whatever passes
through `identity_loss`. A marked loss that feeds another marked loss is an ordinary intermediate
value. An explicit mark beats torch's losses, so a metric computed with a loss function needs no
care. What is differentiated is the value that forward returns: the marked loss itself, or else the
one scalar output that was computed from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self

import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import Tensor
from torch.overrides import TorchFunctionMode

from torchkiln.core import MultipleLossesError, NoLossError, warn_user
from torchkiln.ops._ctc import static_ctc_loss
from torchkiln.ops._loss_marks import listen, stop_listening
from torchkiln.runtime.capture._batch_norm import mixed_batch_norm
from torchkiln.runtime.capture._gaussian_nll import static_gaussian_nll_loss

LOSS_FUNCTIONS = frozenset(
    {
        F.binary_cross_entropy,
        F.binary_cross_entropy_with_logits,
        F.cosine_embedding_loss,
        F.cross_entropy,
        F.ctc_loss,
        F.gaussian_nll_loss,
        F.hinge_embedding_loss,
        F.huber_loss,
        F.kl_div,
        F.l1_loss,
        F.margin_ranking_loss,
        F.mse_loss,
        F.multi_margin_loss,
        F.multilabel_margin_loss,
        F.multilabel_soft_margin_loss,
        F.nll_loss,
        F.poisson_nll_loss,
        F.smooth_l1_loss,
        F.soft_margin_loss,
        F.triplet_margin_loss,
        F.triplet_margin_with_distance_loss,
    }
)

# Functions that look at values although the maths does not, or refuse dtypes that programs mix;
# another form is recorded.
_OTHER_FORMS: dict[Callable[..., Any], Callable[..., Any]] = {
    F.batch_norm: mixed_batch_norm,
    F.ctc_loss: static_ctc_loss,
    F.gaussian_nll_loss: static_gaussian_nll_loss,
}

_REMEDY = (
    "compute the loss inside forward with a torch loss, or wrap your own in identity_loss(loss, "
    "reduction='mean'), and return it"
)


class LossRecorder(TorchFunctionMode):
    """Marks losses while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.implicit: list[Tensor] = []
        self.explicit: list[Tensor] = []
        # Names of the loss functions of torch that were called.
        self.functions: list[str] = []

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = _OTHER_FORMS.get(func, func)(*args, **(kwargs or {}))
        if func in LOSS_FUNCTIONS:
            self.implicit.append(result)
            self.functions.append(func.__name__)
        return result

    def __enter__(self) -> Self:
        listen(self.explicit)
        return super().__enter__()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        stop_listening()
        super().__exit__(exc_type, exc_val, exc_tb)


def find_loss(recorder: LossRecorder, outputs: list[Tensor]) -> Tensor:
    """Return the output to differentiate.

    Raises:
        NoLossError: if no loss was marked, or none reaches an output.
        MultipleLossesError: if several independent ones do.
    """
    if not any(loss.requires_grad for loss in [*recorder.implicit, *recorder.explicit]):
        ungraded = _without_gradients(recorder, outputs)
        if ungraded is not None:
            return ungraded
    # A loss function of detached values is a metric.
    implicit = [loss for loss in recorder.implicit if loss.requires_grad] or recorder.implicit
    losses = _independent(recorder.explicit) or _independent(
        [loss for loss in implicit if _reaches_any(outputs, loss)]
    )
    if not losses:
        if recorder.implicit:
            raise NoLossError(
                "Couldn't find a loss in graph: forward computes a loss but returns nothing that "
                "was computed from it; return the loss (alone, or in a tuple, list or dict)"
            )
        raise NoLossError(f"Couldn't find a loss in graph: {_REMEDY}")
    if len(losses) > 1:
        raise MultipleLossesError(
            f"Multiple independent losses found in graph ({len(losses)}); combine them and wrap "
            "the final one in identity_loss(loss, reduction='none')"
        )
    return _returned(losses[0], outputs, explicit=bool(recorder.explicit))


def _without_gradients(recorder: LossRecorder, outputs: list[Tensor]) -> Tensor | None:
    """Return what would be trained on if anything were; None if no loss was marked.

    Without gradients nobody can tell which output was computed from a loss: the last one that is
    returned counts, else the last one.
    """
    marked = recorder.explicit or recorder.implicit
    returned = [loss for loss in marked if any(output is loss for output in outputs)]
    return next(iter([*reversed(returned), *reversed(marked)]), None)


def _returned(loss: Tensor, outputs: list[Tensor], explicit: bool) -> Tensor:
    derived = [o for o in outputs if o is not loss and o.numel() == 1 and _depends_on(o, loss)]
    if any(output is loss for output in outputs) and (loss.numel() == 1 or not derived):
        if derived and not explicit:
            warn_user(
                "forward returns the result of a loss function and another scalar computed from "
                "it; the program trains on the former. Wrap the one to train on in "
                "identity_loss(loss, reduction='none'), or detach() the other"
            )
        return loss
    if len(derived) == 1:
        return derived[0]
    if derived:
        raise MultipleLossesError(
            f"Multiple independent losses found in graph: {len(derived)} scalar outputs are "
            "computed from the loss; wrap the one to train on in identity_loss(loss, "
            "reduction='none')"
        )
    raise NoLossError(
        "Couldn't find a loss in graph: the marked loss is not returned (or only detached from "
        "its graph); return it"
    )


def _independent(losses: list[Tensor]) -> list[Tensor]:
    unique = list({id(loss): loss for loss in losses}.values())
    return [
        loss
        for loss in unique
        if not any(other is not loss and _depends_on(other, loss) for other in unique)
    ]


def _reaches_any(outputs: list[Tensor], loss: Tensor) -> bool:
    return any(output is loss or _depends_on(output, loss) for output in outputs)


def _depends_on(value: Tensor, ancestor: Tensor) -> bool:
    """Whether `ancestor` lies on the way from the parameters to `value`."""
    if value.grad_fn is None or ancestor.grad_fn is None:
        return False
    stack, seen = [value.grad_fn], set()
    while stack:
        node = stack.pop()
        if node is ancestor.grad_fn:
            return True
        if node not in seen:
            seen.add(node)
            stack.extend(parent for parent, _ in node.next_functions if parent is not None)
    return False
