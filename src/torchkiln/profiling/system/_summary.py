"""What a recording says in numbers: where time went, by process and by epoch."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from torchkiln.core import StoreError
from torchkiln.profiling.system._merge import MERGED, find_runs
from torchkiln.profiling.system._reader import Event, read_events
from torchkiln.profiling.system._timeline import ProcessTrace, Stretch, Timed, Timeline

# What the training loop marks: `torchkiln.training` knows the same words.
TRAINING, EPOCH, STEP, WAIT = "training", "epoch ", "step", "wait for data"


@dataclass(slots=True, eq=False)
class WorkRow:
    """All stretches of one kind in one process.

    Args:
        process: In which.
        channel: What kind of work.
        label: What it is.
        count: How many there were; also of instants.
        total_us: How long they took; those within one of the same name count with that.
        self_us: Without their parts.
        num_cut: How many were still going on at the end.
    """

    process: ProcessTrace
    channel: str
    label: str
    count: int = 0
    total_us: float = 0.0
    self_us: float = 0.0
    num_cut: int = 0


@dataclass(slots=True, eq=False)
class CounterRow:
    """A number that changed with time.

    Args:
        process: In which.
        channel: What kind of number.
        name: What it is.
        count: How often it was told.
        least: The smallest value.
        most: The largest.
        last: The last.
    """

    process: ProcessTrace
    channel: str
    name: str
    count: int = 0
    least: float = float("inf")
    most: float = float("-inf")
    last: float = 0.0
    _since_us: float = 0.0
    _span_us: float = 0.0
    _area: float = 0.0

    def add(self, value: float, now_us: float) -> None:
        if self.count:
            self._area += self.last * (now_us - self._since_us)
            self._span_us += now_us - self._since_us
        self.count += 1
        self.least, self.most = min(self.least, value), max(self.most, value)
        self.last, self._since_us = value, now_us

    @property
    def mean(self) -> float:
        """Over time: a value counts for as long as it was the last one."""
        return self._area / self._span_us if self._span_us else self.last


@dataclass(slots=True, eq=False)
class EpochSplit:
    """Where the time of one epoch went.

    Args:
        process: That trained.
        label: "epoch 1".
        total_us: How long it took, from its own two events.
        step_us: In training steps.
        wait_us: Waiting for data.
        other_us: In other stretches: validation, checkpoints, reports.
        is_cut: Whether it was still going on at the end.
    """

    process: ProcessTrace
    label: str
    total_us: float = 0.0
    step_us: float = 0.0
    wait_us: float = 0.0
    other_us: float = 0.0
    is_cut: bool = False

    @property
    def unmarked_us(self) -> float:
        """Between these."""
        return self.total_us - self.step_us - self.wait_us - self.other_us


@final
@dataclass(frozen=True, slots=True, eq=False)
class Summary:
    """What a recording says in numbers.

    Args:
        processes: Main processes first.
        rows: By process, and within it what took longest first.
        counters: By process.
        epochs: In order.
        num_misnested: Events that do not nest; a recording has none.
    """

    processes: list[ProcessTrace]
    rows: list[WorkRow]
    counters: list[CounterRow]
    epochs: list[EpochSplit]
    num_misnested: int

    @property
    def first_us(self) -> float:
        return min((one.first_us for one in self.processes if one.num_events), default=0.0)

    @property
    def wall_us(self) -> float:
        """From the first event of all to the last."""
        last = max((one.last_us for one in self.processes if one.num_events), default=0.0)
        return last - self.first_us


@dataclass(slots=True, eq=False)
class _Totals:
    rows: dict[tuple[int, str, str], WorkRow] = field(default_factory=dict)
    counters: dict[tuple[int, str, str], CounterRow] = field(default_factory=dict)
    epochs: list[EpochSplit] = field(default_factory=list)
    splits: dict[int, EpochSplit] = field(default_factory=dict)  # of epochs that are not over

    def add(self, timed: Timed) -> None:
        process, stretch = timed.process, timed.stretch
        # Epochs have a table of their own, with a row for each.
        label = EPOCH.strip() if _is_epoch(stretch) else stretch.label
        key = (id(process), stretch.channel, label)
        if timed.kind == "C":
            if key not in self.counters:
                self.counters[key] = CounterRow(process, stretch.channel, stretch.label)
            self.counters[key].add(timed.value, stretch.start_us)
            return
        if key not in self.rows:
            self.rows[key] = WorkRow(process, stretch.channel, label)
        row = self.rows[key]
        row.count += 1
        if timed.kind == "E":
            row.self_us += stretch.self_us
            row.num_cut += stretch.is_cut
            if not _is_within_its_like(stretch):
                row.total_us += stretch.duration_us
            self._split(process, stretch)

    def _split(self, process: ProcessTrace, stretch: Stretch) -> None:
        parent = stretch.parent
        if parent is not None and _is_epoch(parent):
            split = self.splits.setdefault(id(parent), EpochSplit(process, parent.label))
            is_training = stretch.channel == TRAINING
            if is_training and stretch.label == STEP:
                split.step_us += stretch.duration_us
            elif is_training and stretch.label == WAIT:
                split.wait_us += stretch.duration_us
            else:
                split.other_us += stretch.duration_us
        if _is_epoch(stretch):
            split = self.splits.pop(id(stretch), EpochSplit(process, stretch.label))
            split.total_us, split.is_cut = stretch.duration_us, stretch.is_cut
            self.epochs.append(split)


def summarize(path: str | os.PathLike[str]) -> Summary:
    """Sum up a recording: a folder (its newest run), or a file.

    Raises:
        StoreError: There is no recording there, or it is damaged.
    """
    return summarize_events(_events_of(Path(path)))


def summarize_events(events: Iterable[Event]) -> Summary:
    """Sum up events in the order of their files."""
    timeline, totals = Timeline(), _Totals()
    for timed in timeline.follow(events):
        totals.add(timed)
    processes = sorted(timeline.processes, key=lambda one: (not one.is_main, one.first_us))
    place = {id(process): number for number, process in enumerate(processes)}
    return Summary(
        processes=processes,
        rows=sorted(totals.rows.values(), key=lambda row: (place[id(row.process)], -row.total_us)),
        counters=sorted(
            totals.counters.values(),
            key=lambda row: (place[id(row.process)], row.channel, row.name),
        ),
        epochs=sorted(totals.epochs, key=lambda split: place[id(split.process)]),
        num_misnested=timeline.num_misnested,
    )


def has_recording(path: Path) -> bool:
    """Whether there is a recording at `path`, a folder or a file."""
    try:
        if path.is_dir():
            return bool(find_runs(path)) or _is_recording(path / MERGED)
        return _is_recording(path)
    except OSError:
        return False


def _is_recording(path: Path) -> bool:
    try:
        return next(read_events(path), None) is not None
    except (StoreError, OSError):
        return False


def _events_of(path: Path) -> Iterator[Event]:
    try:
        for file in _files_of(path):
            yield from read_events(file)
    except OSError as error:
        raise StoreError(
            f"{path} cannot be read ({error.strerror or error}); pass a folder or a file of a "
            "system profile"
        ) from error


def _files_of(path: Path) -> tuple[Path, ...]:
    if not path.is_dir():
        return (path,)
    # Rather than the merged file: that may be of an earlier run, if this one was killed.
    runs = find_runs(path)
    if runs:
        return runs[0].parts
    if (path / MERGED).exists():
        return (path / MERGED,)
    raise StoreError(
        f"there is no system profile in {path}; set PVTI_OPTIONS in the environment of a run, or "
        "use torchkiln.profiling.record"
    )


def _is_epoch(stretch: Stretch) -> bool:
    return stretch.channel == TRAINING and stretch.label.startswith(EPOCH)


def _is_within_its_like(stretch: Stretch) -> bool:
    above = stretch.parent
    while above is not None:
        if (above.channel, above.label) == (stretch.channel, stretch.label):
            return True
        above = above.parent
    return False
