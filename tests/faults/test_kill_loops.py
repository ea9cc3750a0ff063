"""Training that is killed again and again gives the same bits as one that nobody disturbed."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from _amount import amount
from _processes import child, environment

SCRIPT = str(Path(__file__).with_name("_killed_training.py"))
KILLS = amount(3, 30)
_OWN = re.compile(r"checkpoint-\d{6}\.(json|safetensors)")
_LOCK = ".lock"


class Trainings:
    """Asks the script for one training after the other."""

    def __init__(self, process: subprocess.Popen) -> None:
        self._process = process

    def start(self, root: Path) -> int:
        """Return the process that trains in `root` from now on."""
        self._process.stdin.write(f"{root}\n")
        self._process.stdin.flush()
        word, pid = self._process.stdout.readline().split()
        assert word == "training"
        return int(pid)

    def finish(self) -> tuple[str, int, int]:
        """Return the digest, if it came so far, the exit code, and how often the program ran."""
        digest, line = "", self._process.stdout.readline()
        if not line.startswith("exit "):
            digest, line = line.strip(), self._process.stdout.readline()
        _, code, calls = line.split()
        return digest, int(code), int(calls)


@pytest.fixture(scope="module")
def trainings():
    with child(
        [SCRIPT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment()
    ) as process:
        yield Trainings(process)
        process.stdin.close()
        assert process.wait() == 0


@pytest.fixture(scope="module")
def undisturbed(trainings, tmp_path_factory) -> tuple[str, float]:
    """The digest of a run that nobody kills, and how long it takes."""
    trainings.start(tmp_path_factory.mktemp("undisturbed"))
    begin = time.monotonic()
    digest, code, _ = trainings.finish()
    assert code == 0
    return digest, time.monotonic() - begin


def test_a_training_that_is_killed_at_random_moments_gives_the_same_bits(
    trainings, undisturbed, tmp_path, survived
):
    expected, seconds = undisturbed
    moments = random.Random(0)
    # Only kills of a program that has computed something count.
    folder, early, killed, resumed, saving = 0, 0, 0, 0, 0
    while killed < KILLS:
        root = tmp_path / str(folder)
        before = names_in(root / "tiny")
        pid = trainings.start(root)
        wait_for_moment(moments, pid, root / "tiny", before, seconds)
        with contextlib.suppress(ProcessLookupError):  # it was faster
            os.kill(pid, signal.SIGKILL)
        digest, code, calls = trainings.finish()
        if code == 0:
            assert digest == expected, f"after {killed} kills"
            check_folder(root, wrote=calls > 0)
            folder += 1
        elif calls:
            assert code == -signal.SIGKILL
            killed += 1
            resumed += bool(own_names(before))
            saving += bool(unfinished(names_in(root / "tiny") - before))
        else:
            assert code == -signal.SIGKILL
            early += 1
            assert early < 20 * KILLS, "it is always killed before its first step"
    trainings.start(root := tmp_path / str(folder))
    digest, code, calls = trainings.finish()
    assert (digest, code) == (expected, 0)
    check_folder(root, wrote=calls > 0)
    if KILLS >= 10:
        assert resumed, "no run was killed late enough to be resumed"
        assert saving, "no run was killed while it wrote a checkpoint"
    survived("a training killed at a random moment (SIGKILL) and resumed to the same bits", KILLS)


def wait_for_moment(
    moments: random.Random, pid: int, directory: Path, before: set[str], seconds: float
) -> None:
    """Half of them while a checkpoint is being written, which is a small part of the time."""
    moment = moments.random()
    if moment < 0.5:
        skipped = moments.randrange(3)
        wait_for_names(pid, directory, before, lambda new: len(unfinished(new)) > skipped)
        if moments.random() < 0.5:  # else at once, however fast the disk is
            time.sleep(moments.uniform(0, 0.005))
    elif moment < 0.75:
        # However fast the machine is: the next one has something to resume.
        wait_for_names(pid, directory, before, lambda new: bool(own_names(new)))
    else:
        time.sleep(moments.uniform(0, seconds))


def wait_for_names(
    pid: int, directory: Path, before: set[str], enough: Callable[[set[str]], bool]
) -> None:
    """Return when enough names have appeared that were not there before, or the process ends."""
    appeared: set[str] = set()
    while not enough(appeared) and _is_running(pid):
        appeared |= names_in(directory) - before
        time.sleep(0.001)


def names_in(directory: Path) -> set[str]:
    with contextlib.suppress(FileNotFoundError):
        return set(os.listdir(directory))
    return set()


def unfinished(names: set[str]) -> set[str]:
    return {name for name in names if name.endswith(".torchkiln-tmp")}


def own_names(names: set[str]) -> set[str]:
    return {name for name in names if _OWN.fullmatch(name)}


def _is_running(pid: int) -> bool:
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def check_folder(root: Path, *, wrote: bool) -> None:
    """Two generations and the lock, and nothing else.

    A third one goes with the next save: it is still there if its run was killed after the last.
    """
    names = sorted(path.name for path in (root / "tiny").iterdir())
    own = own_names(set(names))
    assert len(own) == 4 or (not wrote and len(own) == 6), names
    assert [name for name in names if name not in own] == [_LOCK], names
    assert [path.name for path in root.iterdir()] == ["tiny"]
