from __future__ import annotations

import errno

import pytest
from _sample_runs import step_record

from torchkiln.report import EpochRecord, MonitorGroup, QuietMonitor, RunResult
from torchkiln.report._monitor import UpdateCounter


class Recorder(QuietMonitor):
    def __init__(self) -> None:
        self.seen: list[str] = []

    def start(self, total_epochs, first_epoch):
        self.seen.append(f"start {total_epochs} {first_epoch}")

    def step(self, record):
        self.seen.append(f"step {record.epoch} {record.step}")

    def epoch(self, record):
        self.seen.append(f"epoch {record.epoch}")

    def message(self, text):
        self.seen.append(text)

    def result(self, result):
        self.seen.append(result.status)

    def close(self):
        self.seen.append("close")


class FullDisk(Recorder):
    def step(self, record):
        raise OSError(errno.ENOSPC, "No space left on device")

    def close(self):
        super().close()
        raise OSError(errno.ENOSPC, "still no space")


def test_all_hear_everything_in_order():
    first, second = Recorder(), Recorder()
    group = MonitorGroup([first, second])
    group.start(3, 1)
    group.step(step_record(1, 0, 2, 0.5, 10, 1.0))
    group.epoch(EpochRecord(1, 0.5, 1.0, 10, 10.0, 1e-3))
    group.message("hello")
    group.result(RunResult(status="finished"))
    group.close()
    expected = ["start 3 1", "step 1 0", "epoch 1", "hello", "finished", "close"]
    assert first.seen == second.seen == expected


def test_one_that_fails_is_dropped_with_one_warning_and_the_others_go_on():
    broken, other = FullDisk(), Recorder()
    group = MonitorGroup([broken, other])
    with pytest.warns(UserWarning, match=r"FullDisk failed .* No space left"):
        group.step(step_record(0, 0, 3, 0.5, 10, 1.0))
    group.step(step_record(0, 1, 3, 0.5, 10, 1.0))  # a second warning would be an error
    assert broken.seen == ["close"]
    assert other.seen == ["step 0 0", "step 0 1"]
    assert group.monitors == (other,)


def test_an_interrupt_is_not_swallowed():
    class Interrupted(QuietMonitor):
        def message(self, text):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        MonitorGroup([Interrupted()]).message("x")


def test_closing_twice_closes_once():
    recorder = Recorder()
    group = MonitorGroup([recorder])
    group.close()
    group.close()
    assert recorder.seen == ["close"]


def test_updates_are_counted_over_epochs_of_different_length():
    counter = UpdateCounter()
    assert [counter.count(step_record(0, step, 3, 0.5, 1, 1.0)) for step in range(3)] == [0, 1, 2]
    assert [counter.count(step_record(1, step, 2, 0.5, 1, 1.0)) for step in range(2)] == [3, 4]


def test_updates_of_a_resumed_run_start_where_it_stopped():
    counter = UpdateCounter()
    assert [
        counter.count(step_record(4, 2, 10, 0.5, 1, 1.0)),
        counter.count(step_record(4, 3, 10, 0.5, 1, 1.0)),
    ] == [42, 43]
