"""What PopTorch demands of an optimiser before a program takes it."""

from __future__ import annotations

import contextlib
import inspect
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from poptorch._logging import logger
from poptorch._option_store import require
from torchkiln import runtime

_SUPPORTED = (
    torch.optim.SGD,
    torch.optim.AdamW,
    torch.optim.Adam,
    torch.optim.RMSprop,
    runtime.LAMB,
)


def check_optimizer(optimizer: Any) -> None:
    """Refuse optimisers that the original refuses.

    Raises:
        AssertionError: for an unsupported type, unequal `centered` flags or odd `betas`.
        ValueError: for amsgrad.
    """
    require(
        isinstance(optimizer, _SUPPORTED),
        "Unsupported optimizer type",
        type(optimizer).__name__,
        "SGD, Adam, AdamW, RMSprop or LAMB of poptorch.optim or torch.optim",
    )
    for index, group in enumerate(optimizer.param_groups):
        if group.get("amsgrad"):
            raise ValueError(
                f"amsgrad=True (group {index}) is not supported in PopTorch programs; use "
                "torchkiln.training_model, which has it, or leave it out"
            )
        # Others have no such attribute: one that somebody wrote there is ignored, and reported.
        betas = group.get("betas") if "betas" in optimizer.defaults else (0.0, 0.0)
        require(
            isinstance(betas, tuple) and len(betas) == 2,
            f"Unexpected betas in group {index}",
            betas,
            "a tuple of two numbers",
        )
    centered = [group.get("centered", False) for group in optimizer.param_groups]
    require(
        len(set(centered)) <= 1,
        "All parameter groups must agree on centered",
        centered,
        "the same value in each group",
    )


@contextlib.contextmanager
def quiet_engine() -> Iterator[None]:
    """Keep back what the engine warns of and what programs of this kind know already."""
    with warnings.catch_warnings():
        # `AttributeTracker` reports a Python `step`: it logs, and once.
        warnings.filterwarnings("ignore", message=r".*\.step is Python code")
        # `warn_about_gradients` logs it.
        warnings.filterwarnings("ignore", message=r"inputs with requires_grad=True")
        # Options name all processes by themselves, so a lone one was asked for by `disable`.
        warnings.filterwarnings("ignore", message=r"this is one of \d+ processes")
        yield


# Schedulers write these into the groups, and their own `step` onto the optimiser.
_SCHEDULER_KEYS = {
    "initial_lr",
    "max_lr",
    "min_lr",
    "base_momentum",
    "max_momentum",
    "swa_lr",
}


class AttributeTracker:
    """Reports, once each, what a program ignores about the optimisers that it takes."""

    def __init__(self, relaxed: bool) -> None:
        self._level = logging.DEBUG if relaxed else logging.WARNING
        self._attributes: set[str] | None = None
        self._group_keys: list[set[str]] = []
        self._reported: set[str] = set()

    def check(self, optimizer: torch.optim.Optimizer) -> None:
        """Remember the attributes the first time, compare with them afterwards."""
        self._check_step(optimizer)
        attributes = {
            name
            for name, value in vars(optimizer).items()
            if not name.startswith("_") and not callable(value)
        }
        group_keys = [set(group) for group in optimizer.param_groups]
        if self._attributes is None:
            self._attributes, self._group_keys = attributes, group_keys
            return
        for name in sorted(attributes - self._attributes):
            self._report(f"Ignoring unexpected optimizer attribute {name!r}", self._level)
        for index, keys in enumerate(group_keys):
            # A group that is new altogether is the engine's business.
            known = self._group_keys[index] if index < len(self._group_keys) else keys
            for key in sorted(keys - known - _SCHEDULER_KEYS):
                self._report(f"Ignoring unexpected group {index} attribute {key!r}", self._level)

    def _check_step(self, optimizer: torch.optim.Optimizer) -> None:
        base = next(kind for kind in _SUPPORTED if isinstance(optimizer, kind))
        # torch wraps `step` of every class it meets; the function inside tells whose it is.
        if inspect.unwrap(type(optimizer).step) is not inspect.unwrap(base.step):
            self._report(
                f"{type(optimizer).__name__}.step is Python code that a compiled model does not "
                f"execute; the update of {base.__name__} is used",
                logging.WARNING,
            )

    def _report(self, message: str, level: int) -> None:
        if message not in self._reported:
            self._reported.add(message)
            logger.log(level, message)
