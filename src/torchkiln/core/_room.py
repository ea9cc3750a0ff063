"""Whether a disk takes what is going to be written, asked before the work that would be lost."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from torchkiln.core._errors import OptionsError
from torchkiln.core._temporary import temporary_folder

# A page of a disk more than what fits into its own records.
_PROBE_BYTES = 8192
# What a run writes at least: pictures, page and figures, or a small network.
LEAST_RUN_BYTES = 8 * 2**20
_FULL = (errno.ENOSPC, errno.EDQUOT)


def check_room(folder: Path, what: str, remedy: str, *, least_bytes: int = LEAST_RUN_BYTES) -> None:
    """Raise if `folder` could not be made or written; it is not made, and nothing is left behind.

    Args:
        folder: Where something will be written.
        what: Of which the message speaks: "the report".
        remedy: What the message ends with: "choose another --output_dir". Where the disk is full,
            it says first that space could be freed.
        least_bytes: That must be free on its disk.

    Raises:
        OptionsError: It is below a file, cannot be written, or its disk is full.
    """
    problem, is_full = _find_problem(folder.absolute(), least_bytes)
    if problem:
        first = "free some space, or " if is_full else ""
        raise OptionsError(f"{what} cannot be written to {folder}: {problem}; {first}{remedy}")


def _find_problem(folder: Path, least_bytes: int) -> tuple[str, bool]:
    """Return what is wrong, empty if nothing is, and whether it is that the disk is full."""
    place = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    if not place.is_dir():
        return f"{place} is not a folder", False
    try:
        with temporary_folder(beside=place / "torchkiln-probe") as probe:
            (probe / "probe").write_bytes(bytes(_PROBE_BYTES))
        free = shutil.disk_usage(place).free
    except OSError as error:
        # Not `str(error)`: that names the file of this test, which nobody has heard of.
        return error.strerror or str(error), is_full_disk(error)
    if free < least_bytes:
        return f"only {megabytes(free)} are free, and it may need {megabytes(least_bytes)}", True
    return "", False


def free_bytes(folder: Path) -> int:
    """Return the room on the disk of `folder`, which need not be there yet."""
    folder = folder.absolute()
    place = next(path for path in (folder, *folder.parents) if path.is_dir())
    return shutil.disk_usage(place).free


def is_full_disk(error: BaseException) -> bool:
    """Whether an error, or what it was made from, says that there is no room.

    Compilers say it in the text of their message.
    """
    told = (os.strerror(number) for number in _FULL)
    if getattr(error, "errno", None) in _FULL or any(text in str(error) for text in told):
        return True
    return error.__cause__ is not None and is_full_disk(error.__cause__)


def megabytes(count: int) -> str:
    """Return a number of bytes for people."""
    return f"{count / 2**20:,.0f} MB"
