"""Where Inductor generates, compiles and loads code: a folder of this user's alone.

By default torch takes a folder with a name that anybody can foretell in the system's temporary
directory, and loads libraries that it finds there. Whoever makes that folder first can put code
into it. Builds of Torchkiln use a private folder in the user's cache instead, unless the user chose
one with `TORCHINDUCTOR_CACHE_DIR`. So do headers that are compiled once, which torch keeps in that
folder of its own whatever it is told.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from torchkiln.core import (
    CompileError,
    check_trusted_folder,
    file_lock,
    is_shared,
    make_folders,
    private_folder,
    process_cache_dir,
    user_cache_dir,
    writable_cache_dir,
)
from torchkiln.runtime.compile._inductor_compiler import HEADERS, KEPT_SECONDS, guarded_compiler
from torchkiln.torch_internals._inductor import default_workspace

VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
# What a large program takes, and what headers take that are compiled once.
_LEAST_BYTES = 64 * 2**20
_HEADER_BYTES = 320 * 2**20
_LOCK = ".torchkiln-in-use.lock"
# What Inductor makes: folders by two characters of a digest, by a whole one, and by what they hold.
# Not precompiled headers, which are kept by their last use.
_INDUCTORS = re.compile(
    r"[a-z0-9]{2}|c[a-z2-7]{51}|locks|fxgraph|aotautograd|triton|cache|autoheuristic"
)


def inductor_workspace() -> Path:
    """Return the folder that builds use."""
    named = _named()
    return Path(named).absolute() if named else user_cache_dir() / "inductor"


@contextlib.contextmanager
def private_workspace() -> Iterator[None]:
    """Let Inductor work in `inductor_workspace` while the block runs.

    If that has no locks, or was not named by the user and cannot be written or has no room, it is a
    temporary folder, which a warning says.

    Raises:
        TrustError: Somebody else could have put code there.
        CompileError: The user named a folder that cannot be written.
    """
    named = _named()
    folder = _named_folder(Path(named).absolute()) if named else _own_folder()
    with contextlib.ExitStack() as stack:
        # Held while code is generated: nobody drops what this build is about to use.
        if not stack.enter_context(_in_use(folder)):
            # Inductor waits ten minutes for a lock that it cannot get.
            folder = private_folder(process_cache_dir(f"{folder} has no locks") / "inductor")
        stack.enter_context(_variable_set_to(folder))
        stack.enter_context(guarded_compiler(folder))
        yield


def _named() -> str | None:
    """Return the user's choice; torch sets the variable too, to its default, when it compiles."""
    named = os.environ.get(VARIABLE)
    if not named or os.path.abspath(named) == os.path.abspath(default_workspace()):
        return None
    return named


def _named_folder(folder: Path) -> Path:
    """Return the user's folder; nothing in it is removed, and its permissions stay."""
    try:
        if not folder.is_dir():
            shared = is_shared(folder)
            make_folders(folder.parent, own=not shared)
            # Inductor makes folders in it by the umask, which may let others write to them.
            folder.mkdir(mode=0o777 if shared else 0o700, exist_ok=True)
        check_trusted_folder(folder)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError("it is read-only")
    except OSError as error:
        raise CompileError(
            f"Inductor cannot work in {folder} ({error}); set {VARIABLE} to a folder that can be "
            "written, or unset it"
        ) from error
    return folder


def _own_folder() -> Path:
    known = any((user_cache_dir() / "inductor").glob(f"{HEADERS}/*.gch"))
    least = _LEAST_BYTES if known else _LEAST_BYTES + _HEADER_BYTES
    folder = private_folder(writable_cache_dir("inductor", least_bytes=least))
    _drop_old(folder)
    return folder


@contextlib.contextmanager
def _variable_set_to(folder: Path) -> Iterator[None]:
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = str(folder)
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(VARIABLE, None)
        else:
            os.environ[VARIABLE] = before


def _in_use(folder: Path) -> contextlib.AbstractContextManager[bool]:
    return file_lock(folder / _LOCK, shared=True, own=not is_shared(folder))


def _drop_old(workspace: Path) -> None:
    """Remove what no build of the last days made: a package holds all that is needed to run."""
    with contextlib.suppress(OSError), file_lock(workspace / _LOCK, wait=False) as alone:
        if not alone:
            return
        for path in workspace.iterdir():
            old = path.lstat().st_mtime < time.time() - KEPT_SECONDS
            if old and _INDUCTORS.fullmatch(path.name) and path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
