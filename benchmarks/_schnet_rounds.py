"""Contenders that take turns, each for some seconds, on its own endless stream of batches."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torchkiln.core._progress import progress_bar

# A step: batch -> (real molecules, mean loss over them).
Step = Callable[[Any], tuple[int, float]]


@dataclass
class Curve:
    """Losses of steps, by the number of molecules seen when the step was done."""

    molecules: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)

    def add(self, count: int, loss: float) -> None:
        if not math.isfinite(loss):
            raise FloatingPointError(f"loss {loss} after {len(self.losses)} steps")
        self.molecules.append(count + (self.molecules[-1] if self.molecules else 0))
        self.losses.append(loss)


class Contender:
    """One way to train or predict.

    Args:
        name: For tables.
        batches: One epoch; begun anew for ever. Loading counts.
        step: What is done with a batch.
    """

    def __init__(self, name: str, batches: Iterable[Any], step: Step) -> None:
        self.name = name
        self.curve = Curve()
        self.first_call_s = 0.0
        self._batches = _endless(batches)
        self._step = step

    def run(self, seconds: float) -> float:
        """Work for at least so long, at least one step, and return molecules per second."""
        steps, elapsed = self.work(seconds)
        for count, loss in steps:
            self.curve.add(count, loss)
        return sum(count for count, _ in steps) / elapsed

    def work(self, seconds: float) -> tuple[list[tuple[int, float]], float]:
        """Return molecules and loss of each step, and the seconds of all."""
        steps, start = [], time.perf_counter()
        while True:
            steps.append(self._step(next(self._batches)))
            elapsed = time.perf_counter() - start
            if elapsed >= seconds:
                return steps, elapsed

    def close(self) -> None:
        """Nothing to end in this process."""


def _endless(batches: Iterable[Any]) -> Iterator[Any]:
    while True:
        yield from batches


@dataclass
class Outcome:
    """What a contender did over all rounds."""

    name: str
    rates: list[float]
    curve: Curve
    first_call_s: float


def run_rounds(
    contenders: list[Contender], rounds: int, seconds: float, title: str
) -> list[Outcome]:
    """Let all contenders begin (which compiles), then take turns, and return what they did."""
    rates: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    with progress_bar(contenders, desc=f"First steps: {title}") as bar:
        for contender in bar:
            bar.set_postfix_str(contender.name)
            start = time.perf_counter()
            contender.run(0.0)
            contender.first_call_s = time.perf_counter() - start
            contender.run(min(seconds, 1.0))
    with progress_bar(
        [c for _ in range(rounds) for c in contenders], desc=f"Rounds: {title}"
    ) as bar:
        for contender in bar:
            bar.set_postfix_str(contender.name)
            rates[contender.name].append(contender.run(seconds))
    return [Outcome(c.name, rates[c.name], c.curve, c.first_call_s) for c in contenders]
