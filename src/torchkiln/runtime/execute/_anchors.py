"""Internal tensors that the user asks to keep: which there are, and whether a wish can be met."""

from __future__ import annotations

from torchkiln.core import CaptureError, Options, OptionsError
from torchkiln.runtime.call._binding import Binding
from torchkiln.runtime.call._signature import Signature

GRADIENT, UPDATED, LOSS = "Gradient___", "UpdatedVar___", "loss"


def micro_batch_anchors(options: Options) -> dict[str, str]:
    """Return the anchors that every micro-batch gives a value for: name -> tensor."""
    return {
        name: anchor.tensor
        for name, anchor in options.anchors.items()
        if anchor.tensor == LOSS or anchor.tensor.startswith(GRADIENT)
    }


def update_anchors(options: Options) -> dict[str, str]:
    """Return the anchors that every weight update gives a value for: name -> parameter."""
    return {
        name: anchor.tensor.removeprefix(UPDATED)
        for name, anchor in options.anchors.items()
        if anchor.tensor.startswith(UPDATED)
    }


def check_anchor_names(options: Options, training: bool) -> None:
    """Raise `OptionsError` for a tensor that no program of this kind has."""
    for name, anchor in options.anchors.items():
        if not training:
            raise OptionsError(
                f"there is no tensor {anchor.tensor!r} for anchor {name!r}: an inference program "
                "has no loss, gradients or updates; anchor them in a training program"
            )
        if anchor.tensor != LOSS and not anchor.tensor.startswith((GRADIENT, UPDATED)):
            raise OptionsError(
                f"there is no tensor {anchor.tensor!r} for anchor {name!r}; use 'loss', "
                f"'{GRADIENT}<parameter>' or '{UPDATED}<parameter>'"
            )


def check_anchored_parameters(options: Options, binding: Binding) -> None:
    """Raise `CaptureError` for an anchored parameter that the module does not have."""
    parameters = {place.name for bound in binding.parameters for place in bound.places}
    for name in update_anchors(options).values():
        if name not in parameters:
            raise CaptureError(
                f"there is no tensor {UPDATED + name!r} to anchor; parameters: {sorted(parameters)}"
            )


def tensor_names(signature: Signature, binding: Binding, updated: list[str] | None) -> list[str]:
    """Return the names of internal tensors, among them those that can be anchored.

    Args:
        signature: Of the calls.
        binding: The module's tensors.
        updated: Names of the parameters that are trained; None: nothing is.
    """
    names = [f"input/{form.name}" for form in signature.forms]
    names += [bound.name for bound in binding.bound]
    if updated is not None:
        names.append(LOSS)
        for prefix in (GRADIENT, UPDATED):
            names += [prefix + name for name in updated]
    return names
