"""Lines of a text file with their numbers, so that every error can say where."""

from __future__ import annotations

import contextlib
import gzip
import io
import re
import sys
import zlib
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import IO, cast

from torchkiln.core import StoreError
from torchkiln.core._progress import progress_bar

_GZIP_MAGIC = b"\x1f\x8b"
_LOOKED_AT = 8192
# Fortran writes 1.5D-3, Mathematica 1.5*^-3.
_FOREIGN_EXPONENT = re.compile(r"(?<=[\d.])(?:[dD]|\*\^)(?=[+-]?\d)")


class TextLines:
    """The lines of an open file, one after the other; `number` is that of the last one read."""

    def __init__(self, path: Path, stream: IO[str], on_progress: Callable[[], object]) -> None:
        self.path = path
        self.number = 0
        self._stream = stream
        self._on_progress = on_progress

    def next(self) -> str | None:
        """Return the next line without its end; None at the end of the file."""
        line = self._stream.readline()
        if not line:
            return None
        self.number += 1
        return line.rstrip("\n")

    def next_filled(self) -> str | None:
        """Return the next line that is not blank."""
        while (line := self.next()) is not None:
            if line.strip():
                return line
        return None

    def take(self, count: int) -> list[str]:
        """Return the next `count` lines; fewer where the file ends."""
        taken = list(islice(self._stream, min(count, sys.maxsize)))
        self.number += len(taken)
        self._on_progress()
        return taken

    def until(self, mark: str) -> tuple[list[str], bool]:
        """Return the lines before the next that begins with `mark`, and whether there is one."""
        taken: list[str] = []
        self._on_progress()
        for line in self._stream:
            self.number += 1
            if line.startswith(mark):
                return taken, True
            taken.append(line.rstrip("\n"))
        return taken, False

    def error(self, message: str, line: int | None = None) -> StoreError:
        """Return an error that names the file and a line; default: the last one read."""
        return StoreError(f"{self.path}, line {line or self.number}: {message}")


@contextlib.contextmanager
def open_lines(path: Path, *, progress: bool = False) -> Iterator[TextLines]:
    """Open a text file, packed by gzip or not, in any of the usual encodings and line ends.

    Bytes that are no UTF-8 (an angstrom sign in a comment) become replacement characters.

    Raises:
        StoreError: if it cannot be read, is empty, is no text, or its compression is damaged.
    """
    try:
        raw = path.open("rb")
    except IsADirectoryError:
        raise StoreError(f"{path} is a folder; name the files in it") from None
    except OSError as error:
        raise unreadable(path, error) from error
    with (
        raw,
        progress_bar(
            total=path.stat().st_size,
            desc=f"Reading {path.name}",
            unit="B",
            unit_scale=True,
            show=progress,
        ) as bar,
    ):
        try:
            packed = raw.peek(len(_GZIP_MAGIC)).startswith(_GZIP_MAGIC)
        except OSError as error:
            raise unreadable(path, error) from error
        unpacked = gzip.GzipFile(fileobj=raw) if packed else raw
        stream = io.TextIOWrapper(cast(IO[bytes], unpacked), "utf-8-sig", errors="replace")
        lines = TextLines(path, stream, on_progress=lambda: bar.update(raw.tell() - bar.n))
        try:
            _require_text(path, unpacked.peek(_LOOKED_AT)[:_LOOKED_AT])
            yield lines
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise lines.error(
                f"the compressed data are damaged or cut off ({error}); copy the file again"
            ) from error
        except OSError as error:
            raise unreadable(path, error) from error


def unreadable(path: Path, error: OSError) -> StoreError:
    return StoreError(f"{path} cannot be read: {error.strerror or error}; check its name")


def _require_text(path: Path, start: bytes) -> None:
    if not start.strip():
        raise StoreError(f"{path} is empty; it should hold molecules")
    if b"\0" in start:
        raise StoreError(
            f"{path} is a binary file (or UTF-16 text), not text; save it as plain text"
        )


def to_number(text: str) -> float:
    """Return a number, also one with an exponent as Fortran or Mathematica writes it.

    Raises:
        ValueError: if it is none.
    """
    try:
        return float(text)
    except ValueError:
        return float(_FOREIGN_EXPONENT.sub("e", text))


def shorten(text: str, width: int = 60) -> str:
    """Return a line as it may stand in an error."""
    text = text.strip()
    return repr(text if len(text) <= width else f"{text[:width]}...")
