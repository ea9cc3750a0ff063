"""A folder that appears complete or not at all, and never takes another one's place halfway.

New content is written into a temporary folder beside its place. To take the place of an older
folder, that one is first set aside as `.NAME.torchkiln-old`: whoever is killed between the two
renames leaves it there, and the next one who opens or builds there puts it back. Nothing is deleted
before a complete folder, one that has its header, stands in its place.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from torchkiln.core import StoreError, temporary_folder

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextlib.contextmanager
def new_folder(directory: Path, header: str, *, overwrite: bool) -> Iterator[Path]:
    """Yield a folder that becomes `directory` when the block succeeds.

    Args:
        directory: Its place; see `real_place`.
        header: The file that a complete folder has.
        overwrite: A complete folder that is there may be replaced.

    Raises:
        StoreError: It cannot be written, or another process wrote it meanwhile.
    """
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        temporary = temporary_folder(beside=directory)
        outer = temporary.__enter__()
    except OSError as error:
        raise _no_room(directory, error) from error
    with contextlib.ExitStack() as stack:
        stack.push(temporary)
        # The outer folder is private; what is made in it follows the user's umask.
        inner = outer / directory.name
        try:
            inner.mkdir()
        except OSError as error:
            raise _no_room(directory, error) from error
        yield inner
        try:
            _move(inner, directory, header, overwrite=overwrite)
        except OSError as error:
            raise StoreError(
                f"another process wrote {directory} meanwhile ({error}); open that, or build again "
                "with overwrite=True"
            ) from error


def _no_room(directory: Path, error: OSError) -> StoreError:
    return StoreError(f"cannot write below {directory.parent} ({error}); choose another directory")


def real_place(directory: Path) -> Path:
    """Return where a folder really is: what a link leads to is set aside, not the link.

    Raises:
        StoreError: It is the root of the file system, which nothing can lie beside.
    """
    place = Path(os.path.realpath(directory))
    if not place.name:
        raise StoreError(f"{directory} is the root of the file system; choose a directory in it")
    return place


def settle_folder(directory: Path, header: str) -> None:
    """Put a folder back that a killed process had set aside, or delete it if it was replaced.

    Both stay where something else took its place. Waits for a process that is just replacing it.

    Args:
        directory: Its place; see `real_place`.
        header: The file that a complete folder has.
    """
    with contextlib.suppress(OSError), _locked(_aside(directory)) as aside:
        if (directory / header).is_file():
            shutil.rmtree(aside, ignore_errors=True)
        else:
            # The system lets a folder take the place of none or an empty one, but of nothing else.
            aside.rename(directory)


def _move(new: Path, directory: Path, header: str, *, overwrite: bool) -> None:
    while True:
        try:
            _take_place(new, directory, header, overwrite=overwrite)
        except OSError as error:
            is_taken = error.errno in (errno.ENOTEMPTY, errno.EEXIST)
            # Somebody else was just replacing it, too: the last one wins.
            if overwrite and is_taken and _is_ours(directory, header):
                continue
            raise
        return


def _is_ours(directory: Path, header: str) -> bool:
    """Whether a complete folder stands there, or nothing while another process replaces it."""
    is_complete = (directory / header).exists()
    # Looked at twice: it may have come between the first two questions.
    return is_complete or not directory.exists() or (directory / header).exists()


def _take_place(new: Path, directory: Path, header: str, *, overwrite: bool) -> None:
    with contextlib.ExitStack() as stack:
        if overwrite:
            with contextlib.suppress(FileNotFoundError):
                stack.enter_context(_set_aside(directory, header))
        # The system refuses to replace a directory that is not empty.
        new.rename(directory)


@contextlib.contextmanager
def _set_aside(directory: Path, header: str) -> Iterator[None]:
    """Free the place of a complete folder; put it back on errors, else delete it.

    Raises:
        FileNotFoundError: There is none.
    """
    aside = _aside(directory)
    with _locked(directory):
        (directory / header).stat()
        # A complete folder stands here, so what lies aside was replaced by one who was killed then.
        shutil.rmtree(aside, ignore_errors=True)
        directory.rename(aside)
        try:
            yield
        except OSError:
            with contextlib.suppress(OSError):
                aside.rename(directory)
            raise
        shutil.rmtree(aside, ignore_errors=True)


def _aside(directory: Path) -> Path:
    return directory.with_name(f".{directory.name}.torchkiln-old")


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[Path]:
    """Hold a lock on a folder, which follows it through renames and ends with the process.

    Raises:
        FileNotFoundError: There is none, or there was one until the lock was free.
    """
    while True:
        descriptor = os.open(folder, _FOLDER)
        try:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.path.samestat(os.fstat(descriptor), folder.stat()):
                yield folder
                return
        finally:
            os.close(descriptor)
