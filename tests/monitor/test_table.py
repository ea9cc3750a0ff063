"""What people see."""

from __future__ import annotations

import io

import pytest
from _monitor_samples import sample_machine, sample_process, sample_program
from rich.console import Console

from torchkiln.monitor import MachineStatus
from torchkiln.monitor._table import bytes_text, number_text, span_text, status_table


def shown(status: MachineStatus, width: int) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(status_table(status, width))
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def test_a_wide_screen_shows_everything():
    text = shown(sample_machine(sample_process()), 180)
    process, program = text.splitlines()[1:3]
    for word in (
        "205698",
        "trainee01",
        "1h02m",
        "running",
        "7,791",
        "2 %",
        "2/5",
        "0.01236",
        "1.2 GB",
    ):
        assert word in process
    for word in ("1.3 GB", "197 %", "14", "2"):
        assert word in process
    for word in ("training step", "inductor", "cache hit", "81.2", "93 %"):
        assert word in program


@pytest.mark.parametrize("width", [60, 70, 80, 90, 100, 110, 120, 140, 160])
def test_numbers_are_never_cut(width):
    status = sample_machine(sample_process(command="python " + "x" * 300))
    lines = shown(status, width).splitlines()
    assert max(map(len, lines)) <= width
    process, program = lines[1:3]
    assert "205698" in process
    assert "81.2" in program
    numbers = ["1.2 GB", "7,791", "1h02m", "197 %", "0.01236"]
    told = [number for number in numbers if number in process]
    # Whole, or not at all; more of them where there is more room.
    for title, number in zip(("memory", "samples/s", "time", "CPU", "loss"), numbers, strict=True):
        assert (title in lines[0]) == (number in told)
    assert len(told) >= {60: 0, 70: 1, 80: 2, 90: 2, 100: 3}.get(width, 5)


def test_a_compilation_tells_its_phase():
    program = sample_program(state="compiling", phase="C++ compilation", steps_per_s=None)
    process = sample_process(state="compiling", phase="C++ compilation", programs=(program,))
    for width in (60, 120):
        lines = shown(sample_machine(process), width).splitlines()
        assert "compiling" in lines[1]
        assert "C++ compilation" in lines[2]


def test_what_is_unknown_is_a_dash():
    process = sample_process(training=None, resources=None, waiting_share=None)
    text = shown(sample_machine(process), 180)
    assert "None" not in text
    assert text.splitlines()[1].split()[-9:] == ["-"] * 9


def test_text_of_others_is_text():
    process = sample_process(command="[red]x[/red] [/]")
    assert "[red]x[/red] [/]" in shown(sample_machine(process), 160)


def test_no_program_is_said():
    text = shown(sample_machine(others=()), 80)
    assert text == "No program of yours runs on this machine.\n"


def test_others_appear_with_pid_user_and_time_only():
    text = shown(sample_machine(), 80)
    assert text.splitlines()[-1].split() == ["77", "somebody", "1m30s"]


def test_other_versions_are_mentioned():
    text = shown(sample_machine(num_other_format=2), 100)
    assert "2 processes of another version of Torchkiln are not shown" in text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (13.9, "13s"),
        (60, "1m00s"),
        (3599, "59m59s"),
        (3600, "1h00m"),
        (86399, "23h59m"),
        (86400, "1d00h"),
        (1e6, "11d13h"),
    ],
)
def test_spans_of_time(seconds, text):
    assert span_text(seconds) == text


def test_numbers_have_three_digits():
    assert [number_text(value) for value in (None, 0.1234, 9.876, 12.34, 1234.5)] == [
        "-",
        "0.12",
        "9.88",
        "12.3",
        "1,234",
    ]
    assert [bytes_text(count) for count in (None, 2**20, 3 * 2**29)] == ["-", "1 MB", "1.5 GB"]
