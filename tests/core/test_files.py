"""Nobody ever sees half a file."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import stat
import subprocess
import sys
import threading

import pytest

from torchkiln.core import (
    WriteError,
    atomic_path,
    clean_leftovers,
    file_lock,
    sha256_file,
    write_atomic,
)


def test_write_replaces_the_whole_content(tmp_path):
    path = tmp_path / "deep" / "file"
    write_atomic(path, "first, and longer")
    write_atomic(path, b"second")
    assert path.read_bytes() == b"second"
    assert list(path.parent.iterdir()) == [path]


def test_failure_keeps_the_old_content_and_leaves_no_rubbish(tmp_path):
    path = tmp_path / "file"
    write_atomic(path, "old")

    def half_written() -> None:
        with atomic_path(path) as temporary:
            temporary.write_text("half")
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        half_written()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_errors_of_other_files_are_not_blamed_on_the_disk(tmp_path):
    def copy_missing() -> None:
        with atomic_path(tmp_path / "file") as temporary:
            shutil.copyfile(tmp_path / "missing", temporary)

    with pytest.raises(FileNotFoundError, match="missing"):
        copy_missing()


def test_a_place_that_cannot_be_written_names_the_fix(tmp_path):
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(WriteError, match="write to another place"):
        write_atomic(tmp_path / "file" / "inner", "content")


def test_temporary_file_is_beside_its_place(tmp_path):
    # A rename is atomic within one file system only.
    with atomic_path(tmp_path / "file.npz") as temporary:
        assert temporary.parent.parent == tmp_path
        assert temporary.name == "file.npz"
        assert not (tmp_path / "file.npz").exists()


def test_the_umask_of_the_process_is_never_changed(tmp_path, monkeypatch):
    # Not even for a moment: what another thread makes meanwhile could be written by everybody.
    def changed(_mask: int) -> int:
        raise AssertionError("the umask belongs to the whole process")

    monkeypatch.setattr(os, "umask", changed)
    write_atomic(tmp_path / "file", "x")
    assert (tmp_path / "file").read_text() == "x"


def test_private_files_of_native_writers_follow_the_umask(tmp_path):
    before = os.umask(0o022)
    try:
        with atomic_path(tmp_path / "file") as temporary:
            temporary.unlink()
            os.close(os.open(temporary, os.O_CREAT | os.O_WRONLY, 0o600))
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o644


def test_permissions_follow_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        write_atomic(tmp_path / "file", "x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640


def test_checksum_is_that_of_the_content(tmp_path):
    data = os.urandom(300_000)
    (tmp_path / "file").write_bytes(data)
    assert sha256_file(tmp_path / "file") == hashlib.sha256(data).hexdigest()


def test_lock_is_exclusive_among_threads(tmp_path):
    inside, most, guard = 0, 0, threading.Lock()

    def work() -> None:
        nonlocal inside, most
        for _ in range(20):
            with file_lock(tmp_path / "lock"):
                with guard:
                    inside += 1
                    most = max(most, inside)
                with guard:
                    inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


def test_lock_ends_with_its_process(tmp_path):
    code = (
        "import os, sys, pathlib; from torchkiln.core import file_lock\n"
        "with file_lock(pathlib.Path(sys.argv[1])): os._exit(9)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "lock")], check=False)
    assert done.returncode == 9
    with file_lock(tmp_path / "lock"):
        pass


def test_killed_writer_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    write_atomic(path, "old")
    code = (
        "import os, sys, pathlib; from torchkiln.core import atomic_path\n"
        "with atomic_path(pathlib.Path(sys.argv[1])) as t: t.write_text('new'); os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    assert path.read_text() == "old"


def test_nobody_else_may_write_what_is_our_own(tmp_path):
    before = os.umask(0)
    try:
        write_atomic(tmp_path / "deep" / "own" / "file", "x", own=True)
        write_atomic(tmp_path / "open" / "file", "x")
    finally:
        os.umask(before)
    for path in (tmp_path / "deep", tmp_path / "deep" / "own"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "deep" / "own" / "file").stat().st_mode) == 0o644
    assert stat.S_IMODE((tmp_path / "open").stat().st_mode) == 0o777


def test_shared_lock_is_shared_and_keeps_others_out(tmp_path):
    path = tmp_path / "lock"
    with file_lock(path, shared=True) as held, file_lock(path, shared=True, wait=False) as also:
        assert held
        assert also
        with pytest.raises(BlockingIOError), file_lock(path, wait=False):
            pass
    with file_lock(path, wait=False) as alone:
        assert alone


def test_lock_does_not_follow_links(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="link"), file_lock(tmp_path / "link"):
        pass
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_file_system_without_locks_is_used_without_and_not_cleaned(tmp_path, monkeypatch, number):
    def no_locks(_descriptor: int, _kind: int) -> None:
        raise OSError(number, os.strerror(number))

    leftover = tmp_path / ".file.abcdefgh.torchkiln-tmp"
    leftover.mkdir()
    monkeypatch.setattr(fcntl, "flock", no_locks)
    with file_lock(tmp_path / "lock") as held, file_lock(tmp_path / "lock", wait=False) as again:
        assert not held
        assert not again
    write_atomic(tmp_path / "file", "x")
    clean_leftovers(tmp_path)
    assert leftover.is_dir()  # somebody may be using it
    assert (tmp_path / "file").read_text() == "x"
