"""What Torchkiln and its compilers leave on disk: where, how much, how to get rid of it."""

from __future__ import annotations

import os
import shlex
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from torchkiln.commands._findings import Finding
from torchkiln.core import Options
from torchkiln.core._own_code import SOURCES

_SECONDS_PER_FOLDER = 1.0
_LEAST_FREE_BYTES = 2 * 2**30
_NUMBA_SUFFIXES = (".nbi", ".nbc")


def caches() -> Iterator[Finding]:
    """Yield each cache with its size and the command that clears it."""
    from torchkiln.datasets._array_cache import data_dir
    from torchkiln.ops._native import native_dir
    from torchkiln.runtime.compile._inductor_workspace import inductor_workspace

    data, native, executables = data_dir(), native_dir(), bench_cache_dir()
    yield _own_executables()
    if executables != Options().cache_dir:
        yield _folder("benchmark's executables", executables, _clear_executables(executables))
    yield _folder("native helpers", native, _remove(native))
    workspace = inductor_workspace()
    others = tuple(path for path in (native, executables, workspace) if data in path.parents)
    yield _folder("datasets", data, "torchkiln data clear", skip=others)
    yield _folder("Inductor's workspace", workspace, _remove(workspace))
    yield _numba()
    yield from _free_space(data, workspace)


def bench_cache_dir() -> Path:
    """Return where the benchmark keeps executables where POPTORCH_CACHE_DIR does not say."""
    from torchkiln.core import default_cache_dir

    return default_cache_dir()


def folder_size(
    folder: Path, *, skip: tuple[Path, ...] = (), keep: Callable[[str], bool] | None = None
) -> tuple[int, bool]:
    """Return the bytes of the files below `folder`, and whether all were counted.

    Counting ends after a second: a workspace may hold a million files.

    Args:
        folder: Where to look; 0 if it is not there.
        skip: Folders that are somebody else's.
        keep: Which files count, by name.
    """
    deadline = time.monotonic() + _SECONDS_PER_FOLDER
    size, waiting = 0, [folder]
    while waiting:
        current = waiting.pop()
        if current in skip:
            continue
        try:
            entries = list(os.scandir(current))
        except OSError:
            continue  # gone meanwhile, or not ours to read
        for entry in entries:
            try:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(Path(entry.path))
                elif keep is None or keep(entry.name):
                    size += entry.stat(follow_symlinks=False).st_size
            except OSError:
                continue
        if time.monotonic() > deadline:
            return size, not waiting
    return size, True


def _own_executables() -> Finding:
    from torchkiln.runtime.cache._cache import ExecutableCache

    options = Options()
    name = "executable cache"
    if options.cache_dir is None:
        return Finding(
            name, "off for your own programs", "set POPTORCH_CACHE_DIR to start from disk next time"
        )
    entries = ExecutableCache(options.cache_dir, options.cache_limit_bytes).entries()
    size = sum(entry.size_bytes for entry in entries) / 2**20
    limit = options.cache_limit_bytes / 2**20
    return Finding(
        name,
        f"{len(entries)} executables, {size:.1f} of {limit:,.0f} MB in {options.cache_dir}; "
        "clear: torchkiln cache clear",
    )


def _folder(what: str, path: Path, clear: str, *, skip: tuple[Path, ...] = ()) -> Finding:
    if not path.is_dir():
        return Finding(what, f"nothing yet in {path}")
    size, complete = folder_size(path, skip=skip)
    text = f"{'' if complete else 'more than '}{size / 2**20:,.1f} MB in {path}; clear: {clear}"
    if not os.access(path, os.W_OK):
        return Finding(what, text, f"nothing can be written there: chmod u+w {_quoted(path)}")
    return Finding(what, text)


def _numba() -> Finding:
    """Numba keeps compiled loops beside the source files, or where NUMBA_CACHE_DIR says."""
    named = os.environ.get("NUMBA_CACHE_DIR")
    folder = Path(named) if named else SOURCES / "torchkiln"
    size, complete = folder_size(folder, keep=lambda name: name.endswith(_NUMBA_SUFFIXES))
    return Finding(
        "Numba's loops",
        f"{'' if complete else 'more than '}{size / 2**20:,.1f} MB below {folder}; "
        f"clear: find {_quoted(folder)} -name '*.nb[ic]' -delete",
    )


def _free_space(*folders: Path) -> Iterator[Finding]:
    seen: set[int] = set()
    for folder in folders:
        existing = next(path for path in (folder, *folder.parents) if path.is_dir())
        device = existing.stat().st_dev
        if device in seen:
            continue
        seen.add(device)
        free = shutil.disk_usage(existing).free
        yield Finding(
            "free space",
            f"{free / 2**30:,.1f} GB on the disk of {existing}",
            "" if free > _LEAST_FREE_BYTES else "clear some of the above, or move them elsewhere",
        )


def _clear_executables(path: Path) -> str:
    return f"torchkiln cache clear --directory {_quoted(path)}"


def _remove(path: Path) -> str:
    return f"rm -r {_quoted(path)}"


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
