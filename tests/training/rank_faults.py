"""Things that happen to one rank in one of its training steps; for programs under torchrun."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torchkiln.training._evaluation import LossEvaluator
from torchkiln.training._steps import ProgramStep

RANK = int(os.environ["RANK"])


@contextlib.contextmanager
def at_call(number: int, act: Callable[[dict[str, Any]], None], rank: int = 1) -> Iterator[None]:
    """Let `rank` do something with its batch before call `number` of its steps, from 0."""
    usual = ProgramStep.__call__
    calls = iter(range(1_000_000))

    @functools.wraps(usual)
    def step(self: ProgramStep, batch: Any, *arguments: Any) -> Any:
        if next(calls) == number and rank == RANK:
            act(batch)
        return usual(self, batch, *arguments)

    ProgramStep.__call__ = step
    try:
        yield
    finally:
        ProgramStep.__call__ = usual


@contextlib.contextmanager
def at_validation(number: int, act: Callable[[Any], None], rank: int = 1) -> Iterator[None]:
    """Let `rank` do something in a validation, from 0."""
    usual = LossEvaluator._losses
    calls = iter(range(1_000_000))

    @functools.wraps(usual)
    def losses(self: LossEvaluator, *arguments: Any) -> Any:
        if next(calls) == number and rank == RANK:
            act(None)
        return usual(self, *arguments)

    LossEvaluator._losses = losses
    try:
        yield
    finally:
        LossEvaluator._losses = usual


@contextlib.contextmanager
def before(owner: type, name: str, act: Callable[[Any], None], rank: int = 1) -> Iterator[None]:
    """Let `rank` do something before it calls a method for the first time."""
    usual = getattr(owner, name)
    calls = iter(range(1_000_000))

    @functools.wraps(usual)
    def method(*arguments: Any) -> Any:
        if next(calls) == 0 and rank == RANK:
            act(None)
        return usual(*arguments)

    setattr(owner, name, method)
    try:
        yield
    finally:
        setattr(owner, name, usual)


def send(kind: signal.Signals) -> Callable[[Any], None]:
    """Return what lets a rank send itself a signal."""
    return lambda batch: os.kill(os.getpid(), kind)


def once(marker: Path, act: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return what acts only if it has not acted before, in this process or another."""

    def first(batch: Any) -> None:
        if not marker.exists():
            marker.write_text(str(os.getpid()))
            act(batch)

    return first


def spoil(batch: dict[str, Any]) -> None:
    """Put NaN into the targets of a batch of molecules."""
    batch["y"].fill_(float("nan"))
