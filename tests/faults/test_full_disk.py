"""A disk that is full costs what could not be written, and nothing else."""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from _amount import WHOLE, amount
from _processes import PATIENCE_S, environment

SCRIPT = str(Path(__file__).with_name("_full_disk.py"))
# A mount namespace of its own as root; else as root of a user namespace of its own.
_WAYS = (["unshare", "--mount"], ["unshare", "--user", "--map-root-user", "--mount"])
# Drawing pictures takes a second, so there are few rounds with them.
_ROUNDS = {
    "checkpoints": amount(8, 60),
    "cache": amount(4, 60),
    "store": amount(4, 60),
    "arrays": amount(4, 60),
    "report": amount(2, 8),
}


@functools.cache
def namespace() -> list[str] | str:
    """Return how to get a disk of one's own, or why the system refuses."""
    if shutil.which("unshare") is None:
        return "the command unshare is missing"
    refusals = []
    for way in _WAYS:
        command = [*way, "mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", "/mnt"]
        tried = subprocess.run(command, capture_output=True, text=True)
        if tried.returncode == 0:
            return way
        refusals.append(tried.stderr.strip())
    return f"the system allows no mount namespace: {'; '.join(refusals)}"


def write_to_full_disk(
    what: str, rounds: int, folder: Path
) -> tuple[Path, subprocess.CompletedProcess[str]]:
    way = namespace()
    if isinstance(way, str):
        pytest.skip(way)
    disk = folder / "disk"
    disk.mkdir()
    done = subprocess.run(
        [*way, sys.executable, SCRIPT, str(disk), what, str(rounds)],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=PATIENCE_S,
    )
    return disk, done


@pytest.mark.parametrize("what", [*_ROUNDS] if WHOLE else ["checkpoints"])
def test_a_full_disk_harms_nothing_that_was_written_before(what, tmp_path, survived):
    disk, done = write_to_full_disk(what, _ROUNDS[what], tmp_path)
    assert done.returncode == 0, done.stderr
    failed, succeeded = map(int, done.stdout.split()[-2:])
    assert failed > 0, "the disk was never full"
    assert succeeded > 0, "there was never room"
    assert list(disk.iterdir()) == []  # it was a disk of the child alone
    survived("a write to a full disk (tmpfs)", failed)


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("text in place", "what was written before is lost"),
        ("text with litter", "text.torchkiln-tmp"),
    ],
)
def test_a_writer_that_does_harm_is_found(what, said, tmp_path):
    _, done = write_to_full_disk(what, 4, tmp_path)
    assert done.returncode != 0
    assert said in done.stderr
