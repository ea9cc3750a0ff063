"""Telling when a precision costs more time than it saves."""

from __future__ import annotations

import torch
from torch import Tensor

from torchkiln.core import Options, Precision, warn_user

_warned: set[str] = set()


def warn_if_slow(device: torch.device, options: Options, tensors: list[Tensor]) -> None:
    """Warn once per precision where the CPU has no instructions for it."""
    if device.type != "cpu":
        return
    wanted = {tensor.dtype for tensor in tensors}
    if options.precision is Precision.BFLOAT16:
        wanted.add(torch.bfloat16)
    if options.precision is Precision.FLOAT16:
        wanted.add(torch.float16)
    capabilities = torch.cpu.get_capabilities()
    needs = {
        torch.bfloat16: ("avx512_bf16", "amx_bf16", "bf16"),
        torch.float16: ("avx512_fp16", "amx_fp16", "fp16"),
    }
    for dtype, flags in needs.items():
        name = str(dtype).removeprefix("torch.")
        fast = any(capabilities.get(flag, False) for flag in flags)
        if dtype in wanted and not fast and name not in _warned:
            _warned.add(name)
            warn_user(
                f"this CPU has no {name} arithmetic: matrix products in {name} can be hundreds of "
                "times slower than in float32; use it on a device that has"
            )
