"""What library calls allocate for themselves while they run.

oneDNN computes convolutions in blocks of channels. Images in channels-last layout it reads as they
are; others are converted there and back, with all channels filled up to whole blocks. The rules are
read off measurements (docs/memory.md).
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch

# Thinner images are read as they are.
_LEAST_CONVERTED_CHANNELS = 8


def scratch_bytes(node: Any) -> int:
    """Return the bytes that a call in generated code allocates and frees again, if known."""
    kernel = node.get_kernel_name() or ""
    if node.get_device().type != "cpu" or "convolution" not in kernel:
        return 0
    # Images come before weights. The rules are known for flat images only.
    images = [value for value in node.inputs if len(value.get_size()) == 4]
    if len(images) < 2:
        return 0
    if "backward" in kernel:
        return _backward(*images[:2])
    return _forward(images[0], node)


def _forward(image: Any, result: Any) -> int:
    if _is_channels_last(image) and _is_channels_last(result):
        return 0
    return _blocked(result) + max(_blocked(image) - _bytes(result), 0)


def _backward(gradient: Any, image: Any) -> int:
    if _is_channels_last(gradient) and _is_channels_last(image):
        return 0
    return _blocked(gradient) + _blocked(image)


def _bytes(value: Any) -> int:
    return math.prod(int(size) for size in value.get_size()) * int(value.get_dtype().itemsize)


def _blocked(value: Any) -> int:
    channels = int(value.get_size()[1])
    if channels < _LEAST_CONVERTED_CHANNELS and value.get_name().startswith("arg"):
        return 0
    return _bytes(value) // channels * math.ceil(channels / _block()) * _block()


@functools.cache
def _block() -> int:
    return 16 if "AVX512" in torch.backends.cpu.get_cpu_capability() else 8


def _is_channels_last(value: Any) -> bool:
    sizes, strides = value.get_size(), value.get_stride()
    return int(sizes[1]) > 1 and int(strides[1]) == 1
