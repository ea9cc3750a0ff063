"""The beacon: what this process tells `torchkiln monitor` while it runs, at no noticeable cost.

A page of shared memory, made when the first program is used. The monitor reads it whenever it
likes; nobody here ever waits for it. A beacon must never disturb a run: where it cannot be made, or
`TORCHKILN_BEACON=0` says so, there is none, and everything below does nothing.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, final

from torchkiln.core import _beacon_layout as layout
from torchkiln.core import _beacon_page

_numbers = itertools.count(1)


@final
class ProgramBeacon:
    """What one program tells. A `with` block around each call counts it.

    Args:
        name: Of the program.
        kind: "training" or "inference".
        backend: That runs it.
        steps_per_call: Weight updates, or batches, of one call.
        rank: Of this process among those that share the data.
        num_ranks: How many these are.
    """

    def __init__(
        self,
        name: str,
        kind: str,
        backend: str,
        *,
        steps_per_call: int = 1,
        rank: int = 0,
        num_ranks: int = 1,
    ) -> None:
        self._facts = (name, kind, backend, steps_per_call, rank, num_ranks)
        self._steps_per_call = steps_per_call
        self._number = next(_numbers)
        self._part: memoryview | None = None
        self._words: memoryview | None = None
        self._state = layout.NEW
        self._source = self._phase = self._device = ""
        self._sequence = 0
        self._since_ns = self._told_ns = 0
        self._calls = self._steps = self._executing_ns = self._ended_ns = self._interval_ns = 0

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy of a program is another program.
        name, kind, backend, *numbers = self._facts
        return _make_program, (name, kind, backend, *numbers)

    @property
    def last_told_ns(self) -> int:
        """When something last happened to it."""
        return max(self._told_ns, self._ended_ns)

    @property
    def rests(self) -> bool:
        """Whether it neither runs nor is compiled just now."""
        return not self._since_ns

    # -- running: twice for each call, so nothing is done here that can be done elsewhere ------

    def __enter__(self) -> None:
        words = self._words
        if words is None:
            self._since_ns = time.monotonic_ns()
            self._attach()
            return
        self._since_ns = words[layout.SLOT_SINCE] = time.monotonic_ns()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        now = time.monotonic_ns()
        since_ns, self._since_ns = self._since_ns, 0
        if since_ns:  # else a call in another thread ended meanwhile
            self._executing_ns += now - since_ns
        if kind is None:
            self._calls += 1
            self._steps += self._steps_per_call
            if self._ended_ns:
                self._interval_ns = now - self._ended_ns
            self._ended_ns = now
        words = self._words
        if words is None:
            return
        self._sequence = sequence = self._sequence + 2
        words[0] = sequence - 1
        _pack_slot(
            self._part,
            0,
            sequence - 1,
            0,
            self._state,
            self._calls,
            self._steps,
            self._executing_ns,
            self._ended_ns,
            self._interval_ns,
        )
        words[0] = sequence

    # -- compiling --------------------------------------------------------------------------

    @contextlib.contextmanager
    def compiling(self) -> Iterator[None]:
        """Say that the program is compiled meanwhile, and by `compile_phase` how far it is."""
        global _compiled
        before, _compiled = _compiled, self
        state = self._state
        self._state, self._phase, self._since_ns = layout.COMPILING, "", time.monotonic_ns()
        self._attach()
        self._tell()
        try:
            yield
        finally:
            _compiled = before
            self._since_ns, self._phase = 0, ""
            if self._state == layout.COMPILING:
                self._state = state  # it failed
            self._tell()

    def enter_phase(self, phase: str) -> None:
        self._phase = phase
        self._tell()

    def is_ready(self, source: str, device: str) -> None:
        """Say that the program can run, where its executable is from, and what it runs on."""
        self._state, self._source, self._device = layout.READY, source, device
        self._tell()

    def is_from(self, source: str) -> None:
        """Say where the executable really is from."""
        self._source = source
        self._tell()

    def is_destroyed(self) -> None:
        self._state, self._source = layout.NEW, ""
        self._tell()

    # -- the slot ---------------------------------------------------------------------------

    def detach(self, *, forget: bool = False) -> None:
        """Write nowhere until it is used again.

        Args:
            forget: Also begin to count anew.
        """
        self._part = self._words = None
        if forget:
            self._calls = self._steps = self._executing_ns = self._ended_ns = 0
            self._interval_ns = 0

    def _attach(self) -> None:
        page = _beacon_page.get_page()
        if page is None or self._words is not None:
            return
        taken = page.take_slot(self)
        if taken is not None:
            self._part, self._words = taken
            self._tell()

    def _tell(self) -> None:
        part, words = self._part, self._words
        if part is None or words is None:
            return
        self._told_ns = time.monotonic_ns()
        name, kind, backend, steps_per_call, rank, num_ranks = self._facts
        # A slot that another program had goes on with that one's numbers.
        self._sequence = sequence = max(self._sequence, words[0] + 1 & ~1) + 2
        words[0] = sequence - 1
        layout.SLOT.pack_into(
            part,
            0,
            sequence - 1,
            self._since_ns,
            self._state,
            self._calls,
            self._steps,
            self._executing_ns,
            self._ended_ns,
            self._interval_ns,
        )
        layout.FACTS.pack_into(
            part,
            layout.FACTS_AT,
            steps_per_call,
            rank,
            num_ranks,
            self._number,
            layout.clip(name, 48),
            layout.clip(kind, 16),
            layout.clip(backend, 16),
            layout.clip(self._source, 24),
            layout.clip(self._phase, 40),
            layout.clip(self._device, 16),
        )
        words[0] = sequence


_pack_slot: Any = layout.SLOT.pack_into
# The program that is being compiled; there is one at a time.
_compiled: ProgramBeacon | None = None


def _make_program(name: str, kind: str, backend: str, *numbers: int) -> ProgramBeacon:
    steps_per_call, rank, num_ranks = numbers
    return ProgramBeacon(
        name, kind, backend, steps_per_call=steps_per_call, rank=rank, num_ranks=num_ranks
    )


def compile_phase(phase: str) -> None:
    """Say in which phase the present compilation is."""
    if _compiled is not None:
        _compiled.enter_phase(phase)


@final
class _Waiting:
    """`with waiting_for_data:` around what fetches a batch; nested blocks count once."""

    def __enter__(self) -> None:
        if (page := _beacon_page.page) is not None:
            page.begin_wait()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if (page := _beacon_page.page) is not None:
            page.end_wait()


waiting_for_data = _Waiting()
_END = object()


def with_waits(batches: Iterable[Any]) -> Iterator[Any]:
    """Yield batches; the time that each takes to come is waiting for data."""
    iterator = iter(batches)
    while True:
        with waiting_for_data:
            batch = next(iterator, _END)
        if batch is _END:
            return
        yield batch


def tell_training(samples: int, loss: float, epoch: int, num_epochs: int) -> None:
    """Say what came of one step of a training loop.

    Args:
        samples: Real ones of the step.
        loss: Their mean.
        epoch: From 1.
        num_epochs: Of the whole run.
    """
    if (page := _beacon_page.page) is not None:
        page.tell_step(samples, loss, epoch, num_epochs)
