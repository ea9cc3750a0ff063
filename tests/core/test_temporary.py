"""Leftovers of killed processes are known, and nothing else is taken for one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from torchkiln.core import ScratchDirectory, clean_leftovers, is_temporary, temporary_folder
from torchkiln.core import _temporary as implementation


def run_and_kill(statement: str, *arguments: str) -> None:
    """Run code in a process that dies without tidying up."""
    code = f"import os, sys, pathlib, torchkiln.core as core\n{statement}; os._exit(9)"
    done = subprocess.run([sys.executable, "-c", code, *arguments], check=False)
    assert done.returncode == 9


@pytest.fixture
def leftover(tmp_path: Path) -> Path:
    run_and_kill(
        "folder = core._temporary.TemporaryFolder(pathlib.Path(sys.argv[1]), 'store'); "
        "(folder.path / 'half').write_text('x')",
        str(tmp_path),
    )
    (path,) = tmp_path.iterdir()
    return path


def test_leftover_of_a_killed_process_is_removed_by_the_next_writer(tmp_path, leftover):
    assert is_temporary(leftover)
    with temporary_folder(beside=tmp_path / "other") as folder:
        assert list(tmp_path.iterdir()) == [folder]
    assert list(tmp_path.iterdir()) == []


def test_folder_in_use_is_kept(tmp_path):
    with temporary_folder(beside=tmp_path / "file") as folder:
        clean_leftovers(tmp_path)
        code = (
            "import sys, pathlib, torchkiln.core as core\n"
            "core.clean_leftovers(pathlib.Path(sys.argv[1]))"
        )
        subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
        assert folder.is_dir()


def test_what_only_looks_alike_is_kept(tmp_path):
    names = (".tmp", ".store.tmp", "torchkiln-tmp", "a.abcdefgh.torchkiln-tmp", ".a.torchkiln-tmp")
    for name in names:
        (tmp_path / name).mkdir()
    (tmp_path / ".file.abcdefgh.torchkiln-tmp").write_text("a file, not a folder")
    kept = tmp_path / "kept"
    kept.mkdir()
    (tmp_path / ".link.abcdefgh.torchkiln-tmp").symlink_to(kept)
    before = set(tmp_path.iterdir())
    clean_leftovers(tmp_path)
    assert set(tmp_path.iterdir()) == before


def test_long_names_fit(tmp_path):
    with temporary_folder(beside=tmp_path / ("ü" * 120)) as folder:
        assert folder.is_dir()


def test_scratch_directory_of_a_killed_process_is_removed(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    run_and_kill("kept = core.ScratchDirectory()")
    assert len(list(tmp_path.iterdir())) == 1
    monkeypatch.setattr(implementation.tempfile, "gettempdir", lambda: str(tmp_path))
    scratch = ScratchDirectory()
    assert list(tmp_path.iterdir()) == [scratch.path]
    scratch.remove()
    assert list(tmp_path.iterdir()) == []


def test_forked_child_leaves_the_folder_of_its_parent(tmp_path):
    scratch = implementation.TemporaryFolder(tmp_path, "parent")
    child = os.fork()
    if child == 0:
        scratch.remove()
        os._exit(0)
    os.waitpid(child, 0)
    assert scratch.path.is_dir()
    scratch.remove()
    assert not scratch.path.exists()
