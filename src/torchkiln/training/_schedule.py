"""The learning rate on its way: any scheduler of torch, or a function of the update."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol, final

import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from torchkiln.core import OptionsError
from torchkiln.report import EpochRecord
from torchkiln.training._identity import to_kept

Interval = Literal["epoch", "update"]


class Schedule(Protocol):
    """Changes the numbers of an optimiser. Methods say whether they did."""

    def before_step(self, updates: int) -> bool:
        """Get ready for the update of this number, from 0."""

    def after_step(self, num_updates: int) -> bool:
        """So many updates were made at once."""

    def after_epoch(self, record: EpochRecord) -> bool:
        """An epoch is done."""

    def identity(self) -> dict[str, Any] | None:
        """Return what a resumed run must share, in JSON types; asked for before the first step."""

    def state_dict(self) -> dict[str, Any] | None: ...

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None: ...


@final
class TorchSchedule:
    """A scheduler of `torch.optim.lr_scheduler`.

    Args:
        scheduler: On the optimiser of the run, fresh also on resume, with plain numbers as state
            (ExponentialLR, CosineAnnealingLR, ReduceLROnPlateau, ...).
        interval: Step it after each "epoch" or after each weight "update".

    Raises:
        OptionsError: The interval is neither, or does not fit the scheduler.
    """

    def __init__(self, scheduler: LRScheduler, interval: Interval = "epoch") -> None:
        check_scheduler(scheduler, scheduler.optimizer, interval)
        self._scheduler = scheduler
        self._interval = interval

    def before_step(self, updates: int) -> bool:
        return False

    def after_step(self, num_updates: int) -> bool:
        if self._interval != "update":
            return False
        for _ in range(num_updates):
            self._move()
        return True

    def after_epoch(self, record: EpochRecord) -> bool:
        if self._interval != "epoch":
            return False
        if isinstance(self._scheduler, ReduceLROnPlateau):
            known = (record.validation_mae, record.validation_loss, record.loss)
            self._move(next(value for value in known if value is not None))
        else:
            self._move()
        return True

    def _move(self, *metrics: float) -> None:
        with warnings.catch_warnings():
            # A run that goes on after the last step of an epoch begins with this.
            warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step", UserWarning)
            step: Callable[..., None] = self._scheduler.step
            step(*metrics)

    def identity(self) -> dict[str, Any]:
        kind = type(self._scheduler).__name__
        state = to_kept(f"the state of {kind}", self._scheduler.state_dict())
        return {"kind": kind, "interval": self._interval, **state}

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = self._scheduler.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        self._scheduler.load_state_dict(dict(state or {}))


@final
class RateSchedule:
    """A learning rate that is a function of how far training is: nothing to save.

    Args:
        optimizer: All its groups get the rate.
        rate_at: Returns the learning rate of an update, by its number from 0.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, rate_at: Callable[[int], float]) -> None:
        self._optimizer = optimizer
        self._rate_at = rate_at

    def before_step(self, updates: int) -> bool:
        rate = float(self._rate_at(updates))
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        return True

    def after_step(self, num_updates: int) -> bool:
        return False

    def after_epoch(self, record: EpochRecord) -> bool:
        return False

    def identity(self) -> dict[str, Any]:
        # The function itself cannot be compared; its first values can.
        rates = [float(self._rate_at(update)) for update in range(3)]
        return {"kind": "function", "first_rates": rates}

    def state_dict(self) -> None:
        return None

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """Nothing to do: the number of the update says it all."""


def warmup_cosine(update: int, num_updates: int, highest: float, warmup: float) -> float:
    """Return the learning rate of an update: a linear rise, then half a cosine down to zero.

    Args:
        update: Number of the update, from 0.
        num_updates: How many updates the whole run has.
        highest: The highest learning rate.
        warmup: Share of the updates during which the rate rises.
    """
    rising = int(warmup * num_updates)
    if update < rising:
        return highest * (update + 1) / rising
    # The last one is still above zero: an update that changes nothing would be wasted.
    share = (update - rising) / max(num_updates - rising, 1)
    return highest * 0.5 * (1 + math.cos(math.pi * share))


def check_interval(interval: str) -> None:
    """Raise `OptionsError` for anything but "epoch" and "update"."""
    if interval not in ("epoch", "update"):
        raise OptionsError(f"scheduler_interval must be 'epoch' or 'update', got {interval!r}")


def check_scheduler(
    scheduler: LRScheduler, optimizer: torch.optim.Optimizer, interval: str
) -> None:
    """Refuse a scheduler that does not fit, with the reason.

    Raises:
        OptionsError: See the message.
    """
    check_interval(interval)
    if scheduler.optimizer is not optimizer:
        raise OptionsError("the scheduler must belong to the optimizer of the job")
    if isinstance(scheduler, ReduceLROnPlateau) and interval != "epoch":
        raise OptionsError("ReduceLROnPlateau watches whole epochs; use scheduler_interval='epoch'")
