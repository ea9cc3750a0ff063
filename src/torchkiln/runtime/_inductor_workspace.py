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
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from torchkiln.core import check_trusted, private_folder, user_cache_dir
from torchkiln.runtime._inductor_compiler import guarded_compiler

VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
_KEPT_SECONDS = 7 * 86_400


def inductor_workspace() -> Path:
    """Return the folder that builds use."""
    named = os.environ.get(VARIABLE)
    if named and not _is_torchs_default(named):
        return Path(named)
    return user_cache_dir() / "inductor"


@contextlib.contextmanager
def private_workspace() -> Iterator[None]:
    """Let Inductor work in `inductor_workspace` while the block runs.

    Raises:
        TrustError: Somebody else could have put code there.
    """
    before, chosen = os.environ.get(VARIABLE), inductor_workspace()
    if before == str(chosen):
        chosen.mkdir(parents=True, exist_ok=True)
        check_trusted(chosen)
    else:
        _drop_old(private_folder(chosen))
    os.environ[VARIABLE] = str(chosen)
    try:
        with guarded_compiler(chosen):
            yield
    finally:
        if before is None:
            os.environ.pop(VARIABLE, None)
        else:
            os.environ[VARIABLE] = before


def _drop_old(workspace: Path) -> None:
    """Remove what no build of the last days made: a package holds all that is needed to run."""
    with contextlib.suppress(OSError):
        for path in workspace.iterdir():
            old = path.stat().st_mtime < time.time() - _KEPT_SECONDS
            # Headers that are compiled once save seconds of every later build.
            if old and path.is_dir() and path.name != "precompiled_headers":
                shutil.rmtree(path, ignore_errors=True)


def _is_torchs_default(named: str) -> bool:
    # torch sets the variable itself, to this, when it compiles anything.
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    return os.path.abspath(named) == os.path.abspath(default_cache_dir())
