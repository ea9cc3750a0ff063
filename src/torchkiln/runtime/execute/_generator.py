"""The state of the generator that random operations of a program draw from: torch's own."""

from __future__ import annotations

import torch
from torch import Tensor


def generator_state(device: torch.device) -> Tensor:
    """Return the state of torch's generator for a device."""
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def set_generator_state(device: torch.device, state: Tensor) -> None:
    """Let torch's generator for a device go on from a state."""
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.set_rng_state(state)
