"""The series of an older run, kept until the results of a newer one are complete.

Results are two files, and no system replaces two at once. So the older series are kept as
`.results.npz.torchkiln-old` in between, and whoever finds newer series beside older results (a
process was killed, or the disk was full) takes these.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path

from torchkiln.core import write_atomic


@contextlib.contextmanager
def kept_aside(path: Path, sha256: str) -> Iterator[None]:
    """Keep the content of `path` until the block succeeds, if it has this checksum."""
    aside = _aside(path)
    content = _read(path, sha256)
    # With another checksum they are not those that the results need: these lie aside already.
    if content is not None:
        write_atomic(aside, content)
    yield
    with contextlib.suppress(OSError):  # another time
        aside.unlink(missing_ok=True)


def read_aside(path: Path, sha256: str) -> bytes | None:
    """Return what was kept of an older `path`, if it has this checksum."""
    return _read(_aside(path), sha256)


def _aside(path: Path) -> Path:
    return path.with_name(f".{path.name}.torchkiln-old")


def _read(path: Path, sha256: str) -> bytes | None:
    try:
        content = path.read_bytes()
    except OSError:
        return None
    return content if hashlib.sha256(content).hexdigest() == sha256 else None
