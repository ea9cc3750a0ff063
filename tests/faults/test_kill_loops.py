"""Training that is killed again and again gives the same bits as one that nobody disturbed."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
from _amount import amount
from _processes import child, environment

from torchkiln import CheckpointStore

SCRIPT = str(Path(__file__).with_name("_killed_training.py"))
KILLS = amount(3, 30)
# Spread over tests that can run beside each other.
LOOPS = [(seed, min(15, KILLS - first)) for seed, first in enumerate(range(0, KILLS, 15))]
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

    def finish(self) -> tuple[str, int]:
        """Return the digest, if it came so far, and the exit code."""
        digest, line = "", self._process.stdout.readline()
        if not line.startswith("exit "):
            digest, line = line.strip(), self._process.stdout.readline()
        return digest, int(line.split()[1])


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
    digest, code = trainings.finish()
    assert code == 0
    return digest, time.monotonic() - begin


@pytest.mark.parametrize(("seed", "kills"), LOOPS)
def test_a_training_that_is_killed_at_random_moments_gives_the_same_bits(
    seed, kills, trainings, undisturbed, tmp_path, survived
):
    expected, seconds = undisturbed
    moments = random.Random(seed)
    root, killed, resumed = tmp_path / "0", 0, 0
    while killed < kills:
        was_there = CheckpointStore(root / "tiny").exists()
        pid = trainings.start(root)
        moment = moments.random()
        # Half of them while a checkpoint is being written, which is a small part of the time.
        if moment < 0.5:
            wait_for_save(pid, root / "tiny", moments.randrange(3))
            time.sleep(moments.uniform(0, 0.005))
        elif moment < 0.75:
            # However fast the machine is: the next one has something to resume.
            while _is_running(pid) and not CheckpointStore(root / "tiny").exists():
                time.sleep(0.001)
        else:
            time.sleep(moments.uniform(0, seconds / 2))
        with contextlib.suppress(ProcessLookupError):  # it was faster
            os.kill(pid, signal.SIGKILL)
        digest, code = trainings.finish()
        if code == 0:
            assert digest == expected, f"seed {seed}, {killed} kills"
            check_folder(root)
            root = tmp_path / str(killed + 1)
            continue
        assert code == -signal.SIGKILL
        killed += 1
        resumed += was_there
    trainings.start(root)
    assert trainings.finish() == (expected, 0), f"seed {seed}"
    check_folder(root)
    assert resumed or kills < 10, "no run was killed late enough to be resumed"
    survived("a training killed at a random moment (SIGKILL) and resumed to the same bits", kills)


def wait_for_save(pid: int, directory: Path, skipped: int) -> None:
    """Return when a temporary folder has appeared for the so many-th time, or the process ends."""
    seen: set[str] = set()
    while len(seen) <= skipped and _is_running(pid):
        try:
            names = os.listdir(directory)
        except FileNotFoundError:
            names = []
        seen |= {name for name in names if name.endswith(".torchkiln-tmp")}
        time.sleep(0.0003)


def _is_running(pid: int) -> bool:
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def check_folder(root: Path) -> None:
    """Two generations and the lock, and nothing else."""
    names = sorted(path.name for path in (root / "tiny").iterdir())
    own = [name for name in names if _OWN.fullmatch(name)]
    assert len(own) == 4, names
    assert [name for name in names if name not in own] == [_LOCK], names
    assert [path.name for path in root.iterdir()] == ["tiny"]
