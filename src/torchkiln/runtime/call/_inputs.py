"""Bringing the tensors of a call into the form in which a program takes them."""

from __future__ import annotations

import torch
from torch import Tensor

from torchkiln.core import warn_user


class InputPreparation:
    """Makes ordinary tensors without history, on the program's device, of what callers pass."""

    def __init__(self) -> None:
        self._warned = False

    def prepare(self, tensors: list[Tensor], device: torch.device) -> list[Tensor]:
        """Return the tensors themselves where they can be used as they are."""
        if any(tensor.requires_grad for tensor in tensors):
            self._warn_once()
            tensors = [tensor.detach() for tensor in tensors]
        if any(tensor.is_inference() for tensor in tensors):
            tensors = [t.clone() if t.is_inference() else t for t in tensors]
        if device.type == "cpu" and all(tensor.device.type == "cpu" for tensor in tensors):
            return tensors
        return [tensor.to(device, non_blocking=True) for tensor in tensors]

    def _warn_once(self) -> None:
        if not self._warned:
            self._warned = True
            warn_user(
                "inputs with requires_grad=True are detached; a program differentiates with "
                "respect to parameters only"
            )
