"""Small C files of this package, compiled on first use and kept for the user."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import shutil
import subprocess
from pathlib import Path

from torchkiln.core import atomic_path, cpu_features, file_lock

_FLAGS = ("-O3", "-march=native", "-shared", "-fPIC", "-std=gnu11")
_log = logging.getLogger("torchkiln")


def native_dir() -> Path:
    """Return where compiled helpers are kept: `TORCHKILN_NATIVE_DIR` or the user's cache."""
    chosen = os.environ.get("TORCHKILN_NATIVE_DIR")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "torchkiln" / "native"


@functools.cache
def load_native(name: str) -> ctypes.CDLL | None:
    """Return the library built from `name`.c beside this file; None without a C compiler."""
    source = Path(__file__).with_name(f"{name}.c")
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("cc")
    library = native_dir() / f"{name}-{_digest(source)}.so"
    try:
        if not library.exists():
            if compiler is None:
                return None
            _build(compiler, source, library)
        return ctypes.CDLL(str(library))
    except (OSError, subprocess.SubprocessError) as error:
        _log.debug("native helper %s is not available: %s", name, error)
        return None


def _digest(source: Path) -> str:
    # -march=native: a home directory shared by machines must not share instruction sets.
    digest = hashlib.sha256(source.read_bytes())
    digest.update(f"{_FLAGS} {cpu_features()}".encode())
    return digest.hexdigest()[:16]


def _build(compiler: str, source: Path, library: Path) -> None:
    with file_lock(library.with_suffix(".lock")):
        if not library.exists():
            with atomic_path(library) as temporary:
                command = [compiler, *_FLAGS, str(source), "-o", str(temporary), "-lm"]
                subprocess.run(command, check=True, capture_output=True, timeout=120)
