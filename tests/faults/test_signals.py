"""Ctrl-C and SIGTERM in every phase of the benchmark: one line, an exit code, and nothing left.

Ctrl-C goes to the whole group of processes, as a terminal sends it.
"""

from __future__ import annotations

import signal
import sys
import uuid
from pathlib import Path

import pytest
from _amount import WHOLE
from _processes import PATIENCE_S, REPOSITORY, Terminal, child, end_marked, environment

sys.path.insert(0, str(REPOSITORY / "tests" / "apps" / "schnet"))

from _tiny_files import QUICK, write_molecules

from torchkiln import CheckpointStore
from torchkiln.ops._native import native_dir

HOOKS = Path(__file__).with_name("_signalled")
COMPILER = str(HOOKS / "compiler.sh")
SIGNALS = (signal.SIGINT, signal.SIGTERM)
# Before there is a run to save, and after it was saved.
AT_ONCE = ("import", "settings", "data preparation", "capture", "report")
SAVED = ("step", "save")
TRAINING = (*SAVED, "header of a checkpoint")
PHASES = [(phase, kind, 1) for phase in (*AT_ONCE, *SAVED, "C++ compilation") for kind in SIGNALS]
# In the middle of them.
PHASES += [("a molecule", kind, 3) for kind in SIGNALS]
PHASES += [("header of a checkpoint", kind, 2) for kind in SIGNALS]
SAMPLE = [("data preparation", signal.SIGTERM, 1)]
_LINES = {signal.SIGINT: ("interrupted", 130), signal.SIGTERM: ("terminated", 143)}


class Run:
    """One run of bench.py on a terminal."""

    def __init__(self, root: Path, folder: Path, *flags: str, **variables: str) -> None:
        mark = uuid.uuid4().hex
        for name in ("home", "tmp"):
            (folder / name).mkdir(exist_ok=True)
        settings = {
            "TERM": "xterm",
            "COLUMNS": "80",
            "FAULT_MARK": mark,
            "FAULT_PROCESS": "",
            "PYTHONPATH": str(HOOKS),
            "TMPDIR": str(folder / "tmp"),
            "XDG_CACHE_HOME": str(folder / "home"),
            "POPTORCH_CACHE_DIR": str(folder / "cache"),
            "TORCHKILN_NATIVE_DIR": str(native_dir()),
            **variables,
        }
        command = [str(REPOSITORY / "bench.py"), *QUICK, "--root", str(root), "--num_epochs", "2"]
        terminal = Terminal()
        with child(
            [*command, "--checkpoint", *flags],
            cwd=folder,
            env=environment(**settings),
            stdout=terminal.theirs,
            stderr=terminal.theirs,
            start_new_session=True,
        ) as process:
            try:
                self.screen = terminal.read_to_end()
                self.code = process.wait(PATIENCE_S)
            finally:
                self.left = end_marked(mark)
        self.settings_before = terminal.settings_before
        self.settings_after = terminal.settings_after


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    return write_molecules(tmp_path_factory.mktemp("molecules"))


def start(phase: str, kind: signal.Signals, call: int, root: Path, folder: Path, *more: str) -> Run:
    variables = {"FAULT_PHASE": phase, "FAULT_SIGNAL": str(int(kind)), "FAULT_CALL": str(call)}
    flags = list(more)
    if phase == "capture":
        flags += ["--backend", "capture"]
    elif phase == "C++ compilation":
        flags += ["--backend", "inductor"]
        variables["CXX"] = COMPILER
    return Run(root, folder, *flags, **variables)


@pytest.mark.parametrize(("phase", "kind", "call"), PHASES if WHOLE else SAMPLE)
def test_a_signal_ends_the_run_in_order(phase, kind, call, root, tmp_path, survived):
    run = start(phase, kind, call, root, tmp_path)
    check(phase, kind, run, root, tmp_path)
    survived("Ctrl-C or SIGTERM in a phase of the benchmark")


@pytest.mark.faults
@pytest.mark.parametrize("kind", SIGNALS)
def test_a_signal_ends_a_run_with_workers_in_order(kind, root, tmp_path, survived):
    """Ctrl-C reaches them, too."""
    run = start("step", kind, 2, root, tmp_path, "--num_workers", "1")
    check("step", kind, run, root, tmp_path)
    survived("Ctrl-C or SIGTERM in a phase of the benchmark")


def check(phase: str, kind: signal.Signals, run: Run, root: Path, tmp_path: Path) -> None:
    # A training saves itself and says how to go on, whichever signal it was.
    expected = ("interrupted", 130) if phase in TRAINING else _LINES[kind]
    assert run.code == expected[1], run.screen
    assert expected[0] in run.screen, run.screen
    check_left_nothing(run, tmp_path)
    if phase in TRAINING:
        assert CheckpointStore(tmp_path / "checkpoints" / "schnet").exists()
        again = Run(root, tmp_path, "--resume", "true")
        assert again.code == 0, again.screen
        check_left_nothing(again, tmp_path)


def check_left_nothing(run: Run, folder: Path) -> None:
    """A clean terminal, no process, no temporary file."""
    assert not run.left, run.left
    assert run.settings_after == run.settings_before
    assert "Traceback" not in run.screen, run.screen
    assert "Exception ignored" not in run.screen, run.screen
    assert run.screen.count("\x1b[?25l") == run.screen.count("\x1b[?25h")
    assert run.screen.endswith("\n"), repr(run.screen[-200:])
    left = [path for path in folder.rglob("*") if path.name.endswith("torchkiln-tmp")]
    # torch makes this one, empty, when it is told nothing else.
    left += [path for path in (folder / "tmp").iterdir() if "torchinductor" not in path.name]
    assert not left, left
