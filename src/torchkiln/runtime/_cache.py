"""The executable cache: package files by graph key, found by a fast key that needs no tracing.

    <directory>/executables/<graph key>.pt2     native code
    <directory>/executables/<graph key>.json    its checksum, size and description
    <directory>/index/<fast key>.json           which graph a fast key stands for

An entry is native code and is executed when used: keep the directory as safe as your programs.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchkiln.core import atomic_path, file_lock, sha256_file, warn_user, write_atomic

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """One executable on disk."""

    key: str
    path: Path
    size_bytes: int
    last_used_s: float
    description: str


class ExecutableCache:
    """A directory of executables, safe for concurrent processes."""

    def __init__(self, directory: Path, limit_bytes: int) -> None:
        self.directory = directory
        self._limit_bytes = limit_bytes

    def _package(self, key: str) -> Path:
        return self.directory / "executables" / f"{key}.pt2"

    def _record(self, key: str) -> Path:
        return self.directory / "executables" / f"{key}.json"

    def find(self, key: str) -> Path | None:
        """Return the verified package of `key`; a damaged one is removed with a warning."""
        package, record = self._package(key), self._record(key)
        if not package.exists() and not record.exists():
            return None
        values = self._read(record)
        if values is None or not package.exists() or sha256_file(package) != values.get("sha256"):
            warn_user(f"executable {package} is damaged; it is removed and compiled again")
            self._remove(key)
            return None
        with contextlib.suppress(OSError):
            os.utime(package)
        return package

    def store(self, key: str, source: Path, description: str) -> Path:
        """Move a finished package into the cache and keep the cache within its limit."""
        package = self._package(key)
        with atomic_path(package) as temporary:
            os.replace(source, temporary)
        values = {
            "format": _FORMAT,
            "sha256": sha256_file(package),
            "size_bytes": package.stat().st_size,
            "created_s": time.time(),
            "description": description,
        }
        write_atomic(self._record(key), json.dumps(values, indent=2))
        self._prune(keep=key)
        return package

    def lookup(self, fast_key: str) -> dict[str, Any] | None:
        """Return what was stored for a fast key."""
        path = self.directory / "index" / f"{fast_key}.json"
        return self._read(path) if path.exists() else None

    def remember(self, fast_key: str, values: dict[str, Any]) -> None:
        write_atomic(
            self.directory / "index" / f"{fast_key}.json",
            json.dumps({"format": _FORMAT, **values}),
        )

    @contextlib.contextmanager
    def lock(self, key: str) -> Iterator[None]:
        """Let one process compile `key` while others wait for its result."""
        with file_lock(self.directory / "locks" / key):
            yield

    def entries(self) -> list[CacheEntry]:
        """Return all executables, most recently used first."""
        found = []
        for package in (self.directory / "executables").glob("*.pt2"):
            with contextlib.suppress(OSError):
                status = package.stat()
                values = self._read(self._record(package.stem)) or {}
                found.append(
                    CacheEntry(
                        package.stem,
                        package,
                        status.st_size,
                        status.st_mtime,
                        values.get("description", ""),
                    )
                )
        return sorted(found, key=lambda entry: -entry.last_used_s)

    def clear(self) -> int:
        """Remove everything that this class wrote; returns the bytes freed."""
        freed = 0
        for folder in ("executables", "index", "locks"):
            for path in (self.directory / folder).glob("*"):
                with contextlib.suppress(OSError):
                    freed += path.stat().st_size
                    path.unlink()
            with contextlib.suppress(OSError):
                (self.directory / folder).rmdir()
        return freed

    def _prune(self, keep: str) -> None:
        total = 0
        for entry in self.entries():
            total += entry.size_bytes
            if total > self._limit_bytes and entry.key != keep:
                self._remove(entry.key)

    def _remove(self, key: str) -> None:
        for path in (self._package(key), self._record(key)):
            with contextlib.suppress(OSError):
                path.unlink()

    def _read(self, path: Path) -> dict[str, Any] | None:
        try:
            values = json.loads(path.read_text())
        except (OSError, ValueError):
            return None
        if not isinstance(values, dict) or values.get("format") != _FORMAT:
            return None
        return values
