"""Small C and C++ files of this package, compiled on first use and kept for the user.

C files hold functions for ctypes. C++ files hold kernels of torch's operators, which register
themselves when they are loaded (`_tensors.h`). A library is loaded only if nobody else could have
written it and if it ends with its own checksum: half a library would crash the process.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import shlex
import shutil
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path

import torch

from torchkiln.core import (
    check_trusted,
    clean_leftovers_once,
    cpu_features,
    file_lock,
    is_shared,
    run_compiler,
    user_cache_dir,
    warn_user,
    writable_cache_dir,
)
from torchkiln.core._room import is_full_disk

_FLAGS = ("-O3", "-march=native", "-shared", "-fPIC")
# Choices between two numbers may be computed as such; NaN and infinity keep their meaning.
_SELECTS = ("-fno-math-errno", "-fno-trapping-math")
_TORCH = Path(torch.__file__).parent
# Libraries are found by their names, libgomp.so.1 and libtorch_cpu.so, which are loaded already. So
# torch's threads are used, and there is one pool in the process.
_LIBRARIES = (f"-I{_TORCH / 'include'}", f"-L{_TORCH / 'lib'}", "-ltorch_cpu", "-lc10", "-fopenmp")
_LANGUAGES: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    ".c": ("CC", ("gcc", "cc"), ("-std=gnu11", "-lm")),
    ".cpp": ("CXX", ("g++", "c++"), ("-std=c++17", *_SELECTS, *_LIBRARIES)),
}
# What follows a library in its file, before the checksum of what comes before. Loaders of libraries
# do not look that far.
_SEAL = b"\ntorchkiln sha256:"
# Ten seconds of work, but perhaps on a machine where many wait for few cores.
_PATIENCE_SECONDS = 600
# All helpers, and what compilers keep beside them for a while.
_LEAST_BYTES = 16 * 2**20
_VARIABLE = "TORCHKILN_NATIVE_DIR"
_log = logging.getLogger("torchkiln")


def native_dir() -> Path:
    """Return where compiled helpers are kept: `TORCHKILN_NATIVE_DIR` or the user's cache."""
    chosen = os.environ.get(_VARIABLE)
    if chosen:
        # Absolute: a bare file name would be looked for among the system's libraries.
        return Path(chosen).absolute()
    return user_cache_dir() / "native"


@dataclass(frozen=True, slots=True)
class Order:
    """All that it takes to build one helper.

    Args:
        name: Of the source, without its ending.
        command: Compiler and arguments, but for where its output goes.
        library: What is made.
    """

    name: str
    command: list[str]
    library: Path


# What became of helpers that were built before anybody asked for them.
_outcomes: dict[str, Path | Exception] = {}


@functools.cache
def load_native(name: str) -> ctypes.CDLL | None:
    """Return the library built from `name`.c or .cpp beside this file; None without a compiler.

    Raises:
        TrustError: Somebody else could have written it.
    """
    source, library = _locate(name)
    clean_leftovers_once(library.parent)
    try:
        outcome = _outcomes.pop(name, None)
        if isinstance(outcome, Exception):
            raise outcome
        if outcome is not None:
            library = outcome
        elif not _is_intact(library):
            library = _build(_order(name, source, library))
        check_trusted(library)
        return ctypes.CDLL(str(library))
    except (OSError, subprocess.SubprocessError) as error:
        told = getattr(error, "output", None) or b""
        _log.debug("native helper %s is not available: %s\n%s", name, error, told.decode())
        _warn_of_failure(library, error)
        return None


def is_source(name: str) -> bool:
    """Whether there is a helper of this name."""
    return name.isidentifier() and any(path.exists() for path in _sources(name))


def is_built(name: str) -> bool:
    """Whether a helper lies ready to be loaded."""
    return _is_intact(_locate(name)[1])


def order_native(name: str) -> Order | None:
    """Return how to build a helper; None: it cannot be, which `load_native` explains."""
    source, library = _locate(name)
    try:
        return _order(name, source, library)
    except (OSError, subprocess.SubprocessError):
        return None


def keep_outcome(order: Order, stopped: threading.Event) -> None:
    """Build a helper in any thread; `load_native` takes over what became of it.

    Args:
        order: What is to be built.
        stopped: Set by whoever does not want it any more.
    """
    if stopped.is_set():
        return
    try:
        _outcomes[order.name] = _build(order, stopped)
    except (OSError, subprocess.SubprocessError) as error:
        if not stopped.is_set():
            _outcomes[order.name] = error


def _locate(name: str) -> tuple[Path, Path]:
    """Return the source of a helper, and where its library lies if it was built."""
    source = next(path for path in _sources(name) if path.exists())
    digest = _digest(source, _LANGUAGES[source.suffix][2])
    return source, native_dir() / f"{name}-{digest}.so"


def _sources(name: str) -> list[Path]:
    return [Path(__file__).with_name(name + suffix) for suffix in _LANGUAGES]


def _order(name: str, source: Path, library: Path) -> Order:
    """Return how to build a helper; elsewhere if the user's cache is read-only and was not named.

    Raises:
        _NoCompiler: There is none.
        OSError: There is no place for it.
    """
    variable, names, flags = _LANGUAGES[source.suffix]
    found = next(filter(None, map(shutil.which, names)), None)
    # May hold more than a name, as in "ccache g++".
    compiler = shlex.split(os.environ.get(variable, "")) or ([found] if found else [])
    if not compiler:
        raise _NoCompiler(f"there is no compiler ({' or '.join(names)})")
    if not os.environ.get(_VARIABLE):
        library = writable_cache_dir("native", least_bytes=_LEAST_BYTES) / library.name
    return Order(name, [*compiler, str(source), *_FLAGS, *flags], library)


class _NoCompiler(subprocess.SubprocessError):
    """Nothing can be built."""


def _warn_of_failure(library: Path, error: Exception) -> None:
    """Say what costs speed and can be helped; that there is no compiler is known."""
    if os.path.exists(library) and not _is_intact(library):
        warn_user(
            f"{library} is damaged and cannot be built again ({error}); slower code is used; "
            "install a compiler or delete the file"
        )
        return
    missing = not os.path.exists(library) and not isinstance(error, _NoCompiler)
    said = subprocess.SubprocessError((getattr(error, "output", None) or b"").decode())
    full = is_full_disk(error) or is_full_disk(said)
    if missing and (full or not os.access(library.parent, os.W_OK)):
        why = " (its disk is full)" if full else ""
        warn_user(
            f"native kernels cannot be kept in {library.parent}{why}, and without them everything "
            f"runs several times as slowly; set {_VARIABLE} to a folder that can be written"
        )


def _digest(source: Path, flags: tuple[str, ...]) -> str:
    # -march=native: a home directory shared by machines must not share instruction sets.
    digest = hashlib.sha256(source.read_bytes())
    for header in sorted(source.parent.glob("*.h")):
        digest.update(header.read_bytes())
    # Not where torch lies: environments with the same one share what was built.
    named = [flag for flag in flags if not flag.startswith(("-I", "-L"))]
    facts = f"{_FLAGS} {named} {cpu_features()} {torch.__version__} {_SEAL!r}"
    digest.update(facts.encode())
    return digest.hexdigest()[:16]


def _build(order: Order, stopped: threading.Event | None = None) -> Path:
    library = order.library
    own = not is_shared(library)
    with file_lock(library.with_suffix(".lock"), own=own):
        if _is_intact(library):
            return library  # another process was faster
        damaged = library.exists()
        run_compiler(
            order.command,
            library,
            timeout=_PATIENCE_SECONDS,
            finish=_append_seal,
            own=own,
            stopped=stopped,
        )
        if damaged:
            warn_user(f"{library} was damaged; it has been built again")
    return library


def _append_seal(library: Path) -> None:
    checksum = hashlib.sha256(library.read_bytes()).digest()
    with library.open("ab") as file:
        file.write(_SEAL + checksum)


def _is_intact(library: Path) -> bool:
    """Whether a library can be read and ends with the checksum of what comes before it."""
    try:
        content = library.read_bytes()
    except OSError:
        return False
    code, seal, checksum = content.rpartition(_SEAL)
    return bool(seal) and hashlib.sha256(code).digest() == checksum
