from __future__ import annotations

import fcntl
import io
import os
import re
import struct
import termios
from collections.abc import Iterator

import pytest
from _sample_runs import step_record

from torchkiln.report import EpochRecord, _progress, make_monitor
from torchkiln.report._lines import LinesMonitor

CONTROL = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
EPOCH = EpochRecord(0, 0.25, 4.0, 8000, 2000.0, 1e-3, 0.0123, 0.3)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Terminal:
    """A real pseudo-terminal of a given width."""

    def __init__(self, columns: int) -> None:
        self.master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        os.set_blocking(self.master, False)
        self.stream = os.fdopen(slave, "w")

    def read(self) -> str:
        self.stream.flush()
        content = b""
        try:
            while chunk := os.read(self.master, 65536):
                content += chunk
        except BlockingIOError:
            pass
        return content.decode()

    def close(self) -> None:
        self.stream.close()
        os.close(self.master)


@pytest.fixture
def wide() -> Iterator[Terminal]:
    terminal = Terminal(100)
    yield terminal
    terminal.close()


@pytest.fixture
def narrow() -> Iterator[Terminal]:
    terminal = Terminal(32)
    yield terminal
    terminal.close()


def run(monitor, *, epochs: int = 2, steps: int = 5) -> None:
    monitor.start(epochs, 0)
    for epoch in range(epochs):
        for step in range(steps):
            monitor.step(step_record(epoch, step, steps, 0.5, 100, 0.05))
        monitor.epoch(EpochRecord(epoch, 0.25, 4.0, 8000, 2000.0, 1e-3, 0.0123, 0.3))


def test_lines_come_for_the_first_step_every_ten_seconds_and_each_epoch():
    stream, clock = io.StringIO(), Clock()
    monitor = LinesMonitor(stream, unit="eV", counted="molecules", clock=clock)
    monitor.start(2, 0)
    for step in range(25):
        monitor.step(step_record(0, step, 25, 0.5, 100, 1.0))
        clock.now += 1.0
    monitor.epoch(EPOCH)
    monitor.step(step_record(1, 0, 25, 0.2, 100, 1.0))
    lines = stream.getvalue().splitlines()
    assert [line.split("  ")[1] for line in lines[:3]] == ["step 1/25", "step 11/25", "step 21/25"]
    assert lines[1] == "epoch 1/2  step 11/25  loss 0.5  100.0 molecules/s"
    assert lines[3].startswith("epoch 1/2  loss 0.25")
    assert "validation MAE 12.3 meV" in lines[3]
    assert "2,000 molecules/s  4.00 s" in lines[3]
    assert len(lines) == 4


def test_a_pipe_gets_lines_without_control_characters(tmp_path):
    stream = io.StringIO()
    monitor = make_monitor(tmp_path, unit="eV", stream=stream)
    run(monitor)
    monitor.message("saved")
    monitor.close()
    assert stream.getvalue().endswith("saved\n")
    assert "\r" not in stream.getvalue()
    assert "\x1b" not in stream.getvalue()


def test_a_terminal_gets_bars_and_a_line_for_each_epoch(tmp_path, wide, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(_progress, "_REDRAW_S", 0)
    monitor = make_monitor(tmp_path, unit="eV", counted="molecules", stream=wide.stream)
    run(monitor)
    monitor.close()
    shown = wide.read()
    assert "Training 0/2 epochs" in shown
    assert "Epoch 2 0/5" in shown
    assert re.search(r"\| loss 0\.5, 2,000 molecules/s", shown)
    assert shown.count("validation MAE 12.3 meV") == 2
    assert "step 1/5" not in shown  # the lines of the other monitor


def test_closing_wipes_the_bars_and_can_be_repeated(tmp_path, wide, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monitor = make_monitor(tmp_path, stream=wide.stream)
    monitor.start(2, 0)
    monitor.step(step_record(0, 0, 5, 0.5, 100, 0.05))
    monitor.close()
    monitor.close()
    last = CONTROL.sub("", wide.read()).rsplit("\r", 2)
    assert last[-1] == ""
    assert last[-2].strip() == ""


def test_bars_never_wrap_in_a_narrow_terminal(tmp_path, narrow, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monitor = make_monitor(tmp_path, stream=narrow.stream)
    monitor.start(2, 0)
    for step in range(5):
        monitor.step(step_record(0, step, 5, 0.123456, 100, 0.05))
    monitor.close()
    drawn = re.split(r"[\r\n]", CONTROL.sub("", narrow.read()))
    assert any(line.startswith("Epoch 1 ") for line in drawn)
    assert max(map(len, drawn)) <= 32


def test_a_resumed_run_goes_on_in_the_middle(tmp_path, wide, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monitor = make_monitor(tmp_path, stream=wide.stream)
    monitor.start(9, 4)
    monitor.step(step_record(4, 3, 8, 0.5, 100, 0.05))
    monitor.close()
    shown = wide.read()
    assert "Training 4/9 epochs" in shown
    assert "Epoch 5 3/8" in shown


def test_a_dumb_terminal_gets_lines(tmp_path, wide, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    monitor = make_monitor(tmp_path, stream=wide.stream)
    assert [type(entry).__name__ for entry in monitor.monitors] == ["LinesMonitor"]


def test_progress_can_be_switched_off(tmp_path):
    assert make_monitor(tmp_path, progress="none").monitors == ()
