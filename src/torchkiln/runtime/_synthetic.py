"""Generated values in place of everything that a program would read from its user."""

from __future__ import annotations

import collections
import copy
import math

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from torchkiln.core import OptionsError
from torchkiln.runtime.call._signature import Signature


class SyntheticData:
    """What a program with `Options(synthetic_data=True)` runs on.

    It has a module of its own, whose parameters are drawn and not copied, so nothing of the user's
    is read, and nothing of what is computed reaches the user's module or optimiser. Buffers and
    plain attributes (positions, tables) say what forward does, and are copied. Random numbers come
    from a generator of its own: torch's is left as it is.
    """

    def __init__(self, module: nn.Module) -> None:
        self._generators: dict[torch.device, torch.Generator] = {}
        self._arguments: list[Tensor] | None = None
        self._drawn: dict[int, Tensor] = {
            id(parameter): self._parameter_like(parameter)
            for parameter in module.parameters()
            if not isinstance(parameter, UninitializedParameter)
        }
        try:
            self.module = copy.deepcopy(module, dict(self._drawn))
        except Exception as error:  # whatever a user's attribute raises when it is copied
            raise OptionsError(
                f"synthetic_data=True needs a module that copy.deepcopy can copy, but that fails "
                f"({type(error).__name__}: {error}); leave the option out, or keep what cannot be "
                "copied outside of the module"
            ) from error

    def optimizer_like(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """Return an optimiser with the same numbers and no state, of the module's own parameters.

        Raises:
            OptionsError: if it cannot be copied.
        """
        memo = {**self._drawn, id(optimizer.state): collections.defaultdict(dict)}
        try:
            return copy.deepcopy(optimizer, memo)
        except Exception as error:
            raise OptionsError(
                "synthetic_data=True needs an optimiser that copy.deepcopy can copy, but that "
                f"fails ({type(error).__name__}: {error}); leave the option out"
            ) from error

    def arguments_like(self, signature: Signature, device: torch.device) -> list[Tensor]:
        """Return tensors of the forms of a call, the same ones for each call."""
        known = self._arguments
        forms = [(form.shape, form.dtype) for form in signature.forms]
        if known is None or [(tensor.shape, tensor.dtype) for tensor in known] != forms:
            self._arguments = [
                self._draw_(
                    torch.empty(form.shape, dtype=form.dtype, device=device).to(
                        memory_format=form.memory_format
                    )
                )
                for form in signature.forms
            ]
        assert self._arguments is not None
        return list(self._arguments)

    def _parameter_like(self, parameter: Tensor) -> Tensor:
        values = torch.empty_like(parameter.detach())
        # Activations of deep networks keep their size: they would overflow and measure infinities.
        fan_in = parameter[0].numel() if parameter.dim() > 1 and parameter.numel() else 1
        with torch.no_grad():
            self._draw_(values, 1 / math.sqrt(fan_in))
        drawn = nn.Parameter(values, requires_grad=parameter.requires_grad)
        drawn.__dict__.update(parameter.__dict__)
        return drawn

    def _draw_(self, tensor: Tensor, scale: float = 1.0) -> Tensor:
        """Fill with normal numbers, or with zeros: the one whole number that is a valid index."""
        if tensor.is_floating_point() or tensor.is_complex():
            return tensor.normal_(0.0, scale, generator=self._generator(tensor.device))
        return tensor.zero_()

    def _generator(self, device: torch.device) -> torch.Generator:
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(0)
        return self._generators[device]
