"""Folders are tried before work that would be lost if they could not be written."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess

import pytest

from torchkiln.core import OptionsError, WriteError
from torchkiln.core import _room as room


def test_a_folder_that_is_not_there_yet_is_fine_and_not_made(tmp_path):
    room.check_room(tmp_path / "a" / "b", "the report", "choose another", least_bytes=1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["file", "file/below", "link/below"])
def test_a_file_in_its_place_is_named(tmp_path, name):
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(OptionsError, match=r"the report cannot be written to .*is not a folder; f"):
        room.check_room(tmp_path / name, "the report", "fix it")


def test_a_disk_with_too_little_room_is_named(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)._replace(free=3 * 2**20)
    monkeypatch.setattr(room.shutil, "disk_usage", lambda _path: usage)
    with pytest.raises(
        OptionsError, match="only 3 MB are free, and it may need 8 MB; free some space, or fix it"
    ):
        room.check_room(tmp_path, "the report", "fix it")


def test_a_disk_that_refuses_is_named_and_nothing_stays(tmp_path, monkeypatch):
    def refuse(self, data):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(self))

    monkeypatch.setattr(room.Path, "write_bytes", refuse)
    # Neither the file of the test nor advice to free space, which would not help.
    with pytest.raises(OptionsError, match=f"written to {tmp_path}: Read-only file system; fix it"):
        room.check_room(tmp_path, "the report", "fix it")
    assert list(tmp_path.iterdir()) == []


def test_no_room_is_recognised_in_errors_messages_and_causes():
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    told = WriteError("it cannot be written")
    told.__cause__ = full
    compiler = RuntimeError("cannot write PCH file: No space left on device")
    assert all(map(room.is_full_disk, (full, told, compiler)))
    assert not room.is_full_disk(OSError(errno.EACCES, os.strerror(errno.EACCES)))
    assert not room.is_full_disk(subprocess.SubprocessError("unknown option"))
