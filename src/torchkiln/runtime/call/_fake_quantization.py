"""Modules that `torch.quantization.prepare_qat` prepared: made static, or refused by that name.

The fused kind of fake quantisation is one operator, which a program records. In eager PyTorch that
operator gives the statistics of a weight's channels their size when it first sees the weight; a
static program needs it before.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import torch
from torch import Tensor, nn

from torchkiln.core import CaptureError

# torch names it as deprecated, so it is not imported: who has such modules has loaded it.
_PLACE = "torch.ao.quantization.fake_quantize"


def fix_fake_quantization(module: nn.Module) -> None:
    """Give statistics of channels that have none yet the size that eager PyTorch would give them.

    Raises:
        CaptureError: if `module` holds a fake quantisation that decides in Python, from values, or
            one whose number of channels only a first call would tell.
    """
    kinds = sys.modules.get(_PLACE)
    if kinds is None:
        return
    weights = {
        id(child.weight_fake_quant): child.weight
        for child in module.modules()
        if isinstance(getattr(child, "weight_fake_quant", None), nn.Module)
    }
    for name, child in module.named_modules():
        if isinstance(child, kinds.FusedMovingAvgObsFakeQuantize):
            _fix(name, child, weights.get(id(child)))
        elif isinstance(child, kinds.FakeQuantize):
            raise CaptureError(
                f"{name!r} is a {type(child).__name__} of torch.quantization.prepare_qat, which "
                "decides in Python, from values, whether it observes; prepare the module with the "
                "fused kind, which a program can hold: "
                "torch.quantization.get_default_qat_qconfig('fbgemm')"
            )


def _fix(name: str, fake: Any, weight: Any) -> None:
    observer = fake.activation_post_process
    if not fake.is_per_channel or observer.min_val.numel():
        return
    if not isinstance(weight, Tensor) or not fake.observer_enabled[0]:
        raise CaptureError(
            f"{name!r}, put in by torch.quantization.prepare_qat, quantises each channel by itself "
            "and has not observed any yet; call the module once, with its observers enabled, "
            "before it is compiled"
        )
    starts = ((observer.min_val, math.inf), (observer.max_val, -math.inf))
    with torch.no_grad():
        for statistic, start in (*starts, (fake.scale, 1.0), (fake.zero_point, 0)):
            statistic.resize_(weight.shape[fake.ch_axis]).fill_(start)
