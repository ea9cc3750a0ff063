"""The executable cache: package files by graph key, found by a fast key that needs no tracing.

    <directory>/executables/<graph key>.pt2     native code
    <directory>/executables/<graph key>.json    its checksum, size and description
    <directory>/index/<fast key>.json           which graph a fast key stands for
    <directory>/locks/<graph key>               held while an entry is written, read or removed

An entry is native code and is executed when used: the directory must be the user's own, or one that
the user names as trusted. JSON files carry a checksum over everything they say.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchkiln.core import (
    ExecutableError,
    SealBroken,
    atomic_path,
    check_trusted,
    clean_leftovers,
    clean_leftovers_once,
    file_lock,
    is_shared,
    make_folders,
    read_sealed,
    sha256_file,
    warn_user,
    write_sealed,
)

_FORMAT = 2
_KEY = re.compile(r"[0-9a-f]{64}")
_FOLDERS = {"executables": ("json", "pt2"), "index": ("json",), "locks": ("",)}


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """One executable on disk."""

    key: str
    path: Path
    size_bytes: int
    last_used_s: float
    description: str


class ExecutableCache:
    """A directory of executables, safe for concurrent processes.

    Args:
        directory: Made when something is stored.
        limit_bytes: Least recently used executables are dropped above this size.
        trusted: Folders whose content is run whoever wrote it.
    """

    def __init__(self, directory: Path, limit_bytes: int, trusted: tuple[Path, ...] = ()) -> None:
        self.directory = directory
        self._limit_bytes = limit_bytes
        self._trusted = trusted

    @property
    def _own(self) -> bool:
        """Whether nobody else may write what is made here, whatever the umask says."""
        return not is_shared(self.directory, self._trusted)

    def _place(self, folder: str, key: str, suffix: str = "") -> Path:
        if not _KEY.fullmatch(key):
            raise ExecutableError(
                f"{key!r} is no key of the executable cache; keys are 64 hexadecimal digits"
            )
        return self.directory / folder / (f"{key}.{suffix}" if suffix else key)

    def _package(self, key: str) -> Path:
        return self._place("executables", key, "pt2")

    def _record(self, key: str) -> Path:
        return self._place("executables", key, "json")

    @contextlib.contextmanager
    def holding(self, key: str) -> Iterator[Path | None]:
        """Yield the verified package of `key`, or None; nobody else touches the entry meanwhile.

        A damaged one is removed with a warning. Who gets None may compile and `store`: others that
        want the same wait for it.

        Raises:
            TrustError: Somebody else could have written what is in the directory.
        """
        lock, own = self._place("locks", key), self._own
        with contextlib.suppress(OSError):
            make_folders(lock.parent, own=own)
        # Before anything is opened there: a lock that is a link would be made where it leads.
        for place in (self.directory, *(self.directory / folder for folder in _FOLDERS)):
            if place.exists():
                check_trusted(place, self._trusted)
        with contextlib.ExitStack() as stack:
            writable = True
            try:
                stack.enter_context(file_lock(lock, own=own))
            except OSError:
                writable = False  # a cache that is only read, or a full disk
            if writable:
                for folder in _FOLDERS:
                    clean_leftovers_once(self.directory / folder)
            yield self._verified(key, remove=writable)

    def _verified(self, key: str, *, remove: bool) -> Path | None:
        package, record = self._package(key), self._record(key)
        if not package.exists():
            return None  # a record alone is what an interrupted removal leaves
        try:
            check_trusted(package, self._trusted)
            values = read_sealed(record)
            intact = values.get("format") == _FORMAT and values["sha256"] == sha256_file(package)
        except (SealBroken, OSError, KeyError):
            intact = False
        if not intact:
            if remove:
                warn_user(f"executable {package} is damaged; it is removed and compiled again")
                self._remove(key)
            return None
        with contextlib.suppress(OSError):
            os.utime(package)
        return package

    def store(self, key: str, source: Path, description: str) -> None:
        """Copy a finished package into the cache and keep the cache within its limit.

        To be called while `holding` the key.
        """
        package = self._package(key)
        with atomic_path(package, own=self._own) as temporary:
            shutil.copyfile(source, temporary)
        values = {
            "format": _FORMAT,
            "sha256": sha256_file(source),
            "size_bytes": package.stat().st_size,
            "created_s": time.time(),
            "description": description,
        }
        write_sealed(self._record(key), values, own=self._own)
        self._prune(keep=key)

    def lookup(self, fast_key: str) -> dict[str, Any] | None:
        """Return what was remembered for a fast key; a damaged file is removed with a warning."""
        path = self._place("index", fast_key, "json")
        if not path.exists():
            return None
        try:
            check_trusted(path, self._trusted)
            values = read_sealed(path)
            if values.get("format") == _FORMAT and _KEY.fullmatch(str(values.get("graph"))):
                return values
        except FileNotFoundError:
            return None
        except SealBroken:
            pass
        self.forget(fast_key)
        return None

    def remember(self, fast_key: str, values: dict[str, Any]) -> None:
        path = self._place("index", fast_key, "json")
        write_sealed(path, {"format": _FORMAT, **values}, indent=None, own=self._own)

    def forget(self, fast_key: str) -> None:
        """Remove an index file that cannot be used, with a warning."""
        path = self._place("index", fast_key, "json")
        warn_user(f"{path} is damaged; it is removed, and the program is traced again")
        with contextlib.suppress(OSError):
            path.unlink()

    def entries(self) -> list[CacheEntry]:
        """Return all executables, most recently used first."""
        found = []
        for key, package in self._own_files("executables", "pt2"):
            with contextlib.suppress(OSError):
                status = package.stat()
                found.append(
                    CacheEntry(
                        key, package, status.st_size, status.st_mtime, self._description(key)
                    )
                )
        return sorted(found, key=_by_last_use)

    def _description(self, key: str) -> str:
        try:
            return str(read_sealed(self._record(key)).get("description", ""))
        except (SealBroken, OSError):
            return ""

    def _own_files(self, folder: str, suffix: str) -> Iterator[tuple[str, Path]]:
        """Yield key and path of the files that this class wrote."""
        with contextlib.suppress(OSError):
            for path in sorted((self.directory / folder).iterdir()):
                key, _, ending = path.name.partition(".")
                if _KEY.fullmatch(key) and ending == suffix:
                    yield key, path

    def clear(self) -> int:
        """Remove everything that this class wrote and nobody uses; returns the bytes freed."""
        freed = 0
        for folder, suffixes in _FOLDERS.items():
            entries: dict[str, list[Path]] = {}
            for suffix in suffixes:
                for key, path in self._own_files(folder, suffix):
                    entries.setdefault(key, []).append(path)
            for key, paths in entries.items():
                # All files of an entry at once: nobody else sees a part of it.
                with contextlib.suppress(OSError), self._unused(key):
                    for path in paths:
                        freed += path.stat().st_size
                        path.unlink()
            clean_leftovers(self.directory / folder)
        # Asking for locks made some: they go last.
        for _, path in self._own_files("locks", ""):
            with contextlib.suppress(OSError), file_lock(path, wait=False):
                path.unlink()
        for folder in _FOLDERS:
            with contextlib.suppress(OSError):
                (self.directory / folder).rmdir()
        clean_leftovers(self.directory)
        return freed

    def _unused(self, key: str) -> contextlib.AbstractContextManager[bool]:
        """Hold an entry, or raise BlockingIOError if somebody else does.

        Where there are no locks nobody can tell: the limit counts for more than another process,
        which compiles again.
        """
        return file_lock(self._place("locks", key), wait=False, own=self._own)

    def _prune(self, keep: str) -> None:
        total, gone = 0, set()
        for entry in self.entries():
            total += entry.size_bytes
            if total > self._limit_bytes and entry.key != keep:
                with contextlib.suppress(OSError), self._unused(entry.key):
                    self._remove(entry.key)
                    gone.add(entry.key)
        if gone:
            self._drop_index_of(gone)

    def _drop_index_of(self, gone: set[str]) -> None:
        for _, path in self._own_files("index", "json"):
            with contextlib.suppress(OSError, SealBroken):
                if read_sealed(path).get("graph") in gone:
                    path.unlink()

    def _remove(self, key: str) -> None:
        for path in (self._record(key), self._package(key)):
            with contextlib.suppress(OSError):
                path.unlink()


def _by_last_use(entry: CacheEntry) -> float:
    # A date in the future says nothing about the last use, and would keep the entry for ever.
    return -entry.last_used_s if entry.last_used_s <= time.time() + 1 else 0.0
