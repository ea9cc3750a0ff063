"""BatchNorm of half-precision values with running statistics in float32."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import Tensor

from torchkiln.runtime.optim._state_dtypes import HALVES


def mixed_batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *args: Any,
    **kwargs: Any,
) -> Tensor:
    """Same as `torch.nn.functional.batch_norm`, for half weights beside float32 statistics too.

    torch's kernels want weights and statistics in one dtype and compute in float32 anyway, so
    the weights are widened: the result is that of the half-precision weights.
    """
    statistics = running_mean if running_mean is not None else running_var
    if statistics is not None and input.dtype in HALVES and statistics.dtype not in HALVES:
        weight = None if weight is None else weight.to(statistics.dtype)
        bias = None if bias is None else bias.to(statistics.dtype)
    return F.batch_norm(input, running_mean, running_var, weight, bias, *args, **kwargs)
