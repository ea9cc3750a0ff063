"""Internal tensors that the user asks to keep: which there are, and whether a wish can be met."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from torchkiln.core import CaptureError, Options, OptionsError
from torchkiln.runtime.call._binding import Binding, BoundTensor
from torchkiln.runtime.call._signature import Signature

GRADIENT, UPDATED, LOSS, INPUT = "Gradient___", "UpdatedVar___", "loss", "input/"


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


def input_anchors(options: Options) -> dict[str, str]:
    """Return the anchors that are arguments: name -> argument."""
    return {
        name: anchor.tensor.removeprefix(INPUT)
        for name, anchor in options.anchors.items()
        if anchor.tensor.startswith(INPUT)
    }


def own_anchors(options: Options) -> dict[str, str]:
    """Return the anchors that are tensors of the module: name -> parameter, buffer, attribute."""
    return {
        name: anchor.tensor
        for name, anchor in options.anchors.items()
        if not _is_of_training(anchor.tensor) and not anchor.tensor.startswith(INPUT)
    }


def check_anchor_names(options: Options, training: bool) -> None:
    """Raise `OptionsError` for a tensor that no program of this kind has."""
    for name, anchor in options.anchors.items():
        if not training and _is_of_training(anchor.tensor):
            raise OptionsError(
                f"there is no tensor {anchor.tensor!r} for anchor {name!r}: an inference program "
                "has no loss, gradients or updates; anchor them in a training program"
            )


def check_anchored_tensors(options: Options, binding: Binding, signature: Signature) -> None:
    """Raise `CaptureError` for an anchored tensor that neither module nor call has."""
    parameters = _names(binding.parameters)
    own = _names(binding.bound) | {f"{INPUT}{form.name}" for form in signature.forms}
    for anchor in options.anchors.values():
        tensor = anchor.tensor
        prefix = next((p for p in (GRADIENT, UPDATED) if tensor.startswith(p)), "")
        known = parameters if prefix else own
        if tensor != LOSS and tensor.removeprefix(prefix) not in known:
            raise CaptureError(
                f"there is no tensor {tensor!r} to anchor; use a name of the list below, "
                f"'{GRADIENT}<parameter>' or '{UPDATED}<parameter>' of a training program, or "
                f"{LOSS!r}; names: {sorted(own)}"
            )


def as_bound(tensor: str, binding: Binding) -> str:
    """Return the name of an anchored gradient or loss by the first name of its parameter.

    A parameter that is in several places has a name for each.
    """
    name = tensor.removeprefix(GRADIENT)
    for bound in binding.parameters:
        if any(place.name == name for place in bound.places):
            return GRADIENT + bound.name
    return tensor


def _names(tensors: list[BoundTensor]) -> set[str]:
    return {place.name for bound in tensors for place in bound.places}


def _is_of_training(tensor: str) -> bool:
    return tensor == LOSS or tensor.startswith((GRADIENT, UPDATED))


def copies_of(names: Iterable[str], binding: Binding, tensors: list[Tensor]) -> list[Tensor]:
    """Return copies of the module's tensors of these names, as the executable sees them."""
    pairs = zip(binding.bound, tensors, strict=True)
    by_name = {place.name: tensor for bound, tensor in pairs for place in bound.places}
    return [by_name[name].detach().clone() for name in names]


def tensor_names(signature: Signature, binding: Binding, updated: list[str] | None) -> list[str]:
    """Return the names of internal tensors, among them those that can be anchored.

    Args:
        signature: Of the calls.
        binding: The module's tensors.
        updated: Names of the parameters that are trained; None: nothing is.
    """
    names = [INPUT + form.name for form in signature.forms]
    names += [bound.name for bound in binding.bound]
    if updated is not None:
        names.append(LOSS)
        for prefix in (GRADIENT, UPDATED):
            names += [prefix + name for name in updated]
    return names
