"""Ctrl-C and SIGTERM in every phase of the benchmark: one line, an exit code, and nothing left."""

from __future__ import annotations

import signal
import sys
import uuid
from pathlib import Path

import pytest
from _amount import WHOLE
from _processes import PATIENCE_S, REPOSITORY, Terminal, child, environment, marked_processes

sys.path.insert(0, str(REPOSITORY / "tests" / "bench" / "schnet"))

from _tiny_files import QUICK, write_molecules

from torchkiln import CheckpointStore
from torchkiln.ops._native import native_dir

HOOKS = Path(__file__).with_name("_signalled")
COMPILER = str(HOOKS / "compiler.sh")
SIGNALS = (signal.SIGINT, signal.SIGTERM)
# Before there is a run to save, and after it was saved.
AT_ONCE = ("import", "settings", "data preparation", "capture", "report")
SAVED = ("step", "save")
PHASES = [(phase, kind) for phase in (*AT_ONCE, *SAVED, "C++ compilation") for kind in SIGNALS]
SAMPLE = [("data preparation", signal.SIGTERM)]
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
            self.screen = terminal.read_to_end()
            self.code = process.wait(PATIENCE_S)
            self.left = marked_processes(mark)
            for other in self.left:
                other.kill()


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    return write_molecules(tmp_path_factory.mktemp("molecules"))


def start(phase: str, kind: signal.Signals, root: Path, folder: Path) -> Run:
    variables = {"FAULT_PHASE": phase, "FAULT_SIGNAL": str(int(kind))}
    flags = []
    if phase == "capture":
        flags = ["--backend", "capture"]
    elif phase == "C++ compilation":
        flags, variables["CXX"] = ["--backend", "inductor"], COMPILER
    return Run(root, folder, *flags, **variables)


@pytest.mark.parametrize(("phase", "kind"), PHASES if WHOLE else SAMPLE)
def test_a_signal_ends_the_run_in_order(phase, kind, root, tmp_path, survived):
    run = start(phase, kind, root, tmp_path)
    expected = ("interrupted", 130) if phase in SAVED else _LINES[kind]
    assert run.code == expected[1], run.screen
    assert expected[0] in run.screen, run.screen
    check_left_nothing(run, tmp_path)
    if phase in SAVED:
        assert CheckpointStore(tmp_path / "checkpoints" / "schnet").exists()
        again = Run(root, tmp_path, "--resume", "true")
        assert again.code == 0, again.screen
        check_left_nothing(again, tmp_path)
    survived("Ctrl-C or SIGTERM in a phase of the benchmark")


def check_left_nothing(run: Run, folder: Path) -> None:
    """A clean terminal, no process, no temporary file."""
    assert not run.left, [process.cmdline() for process in run.left]
    assert "Traceback" not in run.screen, run.screen
    assert "Exception ignored" not in run.screen, run.screen
    assert run.screen.count("\x1b[?25l") == run.screen.count("\x1b[?25h")
    assert run.screen.endswith("\n"), repr(run.screen[-200:])
    left = [path for path in folder.rglob("*") if path.name.endswith("torchkiln-tmp")]
    # torch makes this one, empty, when it is told nothing else.
    left += [path for path in (folder / "tmp").iterdir() if "torchinductor" not in path.name]
    assert not left, left
