"""Loops and branches that a static graph can hold: unrolled, or computed on both sides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Body = Callable[..., Any]


def repeat(count: int, body: Body, inputs: Sequence[Tensor]) -> list[Tensor]:
    """Return the result of applying `body` `count` times, each time to its last results.

    The loop is unrolled, so a program grows with `count`. The inputs are not changed, even if
    `body` works in place.

    Raises:
        ValueError: if `body` returns another number of tensors than it takes.
    """
    if count < 0:
        raise ValueError(f"count must not be negative, got {count}")
    state = [tensor.clone() for tensor in inputs]
    for _ in range(count):
        results = as_list(body(*state))
        if len(results) != len(state):
            raise ValueError(
                f"the loop body takes {len(state)} tensors and returned {len(results)}; it must "
                "return as many as it takes"
            )
        state = results
    return state


def choose(
    condition: Tensor,
    then_body: Body,
    then_inputs: Sequence[Tensor],
    else_body: Body,
    else_inputs: Sequence[Tensor],
) -> list[Tensor]:
    """Return the results of one of two functions; both are computed, `condition` selects.

    A side that is not chosen may be anything, NaN included.

    Raises:
        ValueError: if `condition` has more than one element, or the results do not match.
    """
    if condition.numel() != 1:
        raise ValueError(f"condition must have one element, got shape {list(condition.shape)}")
    then_results = as_list(then_body(*(tensor.clone() for tensor in then_inputs)))
    else_results = as_list(else_body(*(tensor.clone() for tensor in else_inputs)))
    if len(then_results) != len(else_results):
        raise ValueError(
            f"both branches must return the same number of tensors, got {len(then_results)} and "
            f"{len(else_results)}"
        )
    chosen = condition.reshape(()).bool()
    return [_select(chosen, *pair) for pair in zip(then_results, else_results, strict=True)]


def _select(condition: Tensor, then_result: Tensor, else_result: Tensor) -> Tensor:
    if then_result.shape != else_result.shape or then_result.dtype != else_result.dtype:
        raise ValueError(
            f"both branches must return the same shapes and dtypes, got "
            f"{list(then_result.shape)} of {then_result.dtype} and {list(else_result.shape)} of "
            f"{else_result.dtype}"
        )
    return torch.where(condition, then_result, else_result)


def as_list(results: Any) -> list[Tensor]:
    """Return one tensor, or a sequence of tensors, as a list."""
    return [results] if isinstance(results, Tensor) else list(results)
