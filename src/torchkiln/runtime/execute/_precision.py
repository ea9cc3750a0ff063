"""Telling when a precision costs more time than it saves."""

from __future__ import annotations

import torch
from torch import Tensor

from torchkiln.core import Options, Precision, warn_user

_warned: set[str] = set()


# Instructions for a dtype, any of which will do.
_NEEDS = {
    torch.bfloat16: ("avx512_bf16", "amx_bf16", "bf16"),
    torch.float16: ("avx512_fp16", "amx_fp16", "fp16"),
}


def is_fast(dtype: torch.dtype) -> bool:
    """Whether this CPU has instructions for a dtype of 16 bits."""
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(flag, False) for flag in _NEEDS[dtype])


def warn_if_slow(device: torch.device, options: Options, tensors: list[Tensor]) -> None:
    """Warn once per precision where the CPU has no instructions for it."""
    if device.type != "cpu":
        return
    wanted = {tensor.dtype for tensor in tensors}
    if options.precision is Precision.BFLOAT16:
        wanted.add(torch.bfloat16)
    if options.precision is Precision.FLOAT16:
        wanted.add(torch.float16)
    for dtype in _NEEDS:
        name = str(dtype).removeprefix("torch.")
        if dtype in wanted and not is_fast(dtype) and name not in _warned:
            _warned.add(name)
            warn_user(
                f"this CPU has no {name} arithmetic: matrix products in {name} can be hundreds of "
                "times slower than in float32; use it on a device that has"
            )
