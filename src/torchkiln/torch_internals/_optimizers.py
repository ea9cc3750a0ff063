"""What torch's optimisers note about themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def note_update(optimizer: torch.optim.Optimizer) -> None:
    """Let the optimiser look as if its `step` had been called.

    torch: schedulers warn at their `step()` unless `_opt_called` is set.
    for: a program updates weights itself, and schedules work as in a loop of torch.
    """
    optimizer._opt_called = True  # type: ignore[attr-defined]


def step_hooks_of(optimizer: torch.optim.Optimizer) -> list[Callable[..., Any]]:
    """Return the hooks that the user registered around `step`.

    torch: `register_step_pre_hook` and `register_step_post_hook` fill these two dictionaries.
    for: hooks are Python that a program does not run, which a warning says.
    """
    tables = (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks)
    return [hook for table in tables for hook in table.values()]
