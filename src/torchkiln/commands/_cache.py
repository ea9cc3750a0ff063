"""`torchkiln cache`: what is in the executable cache, and how to empty it."""

from __future__ import annotations

from pathlib import Path

from torchkiln.core import Options, OptionsError
from torchkiln.core._console import make_console


def _find(directory: Path | None) -> Path:
    chosen = directory or Options().cache_dir
    if chosen is None:
        raise OptionsError(
            "no cache directory: set POPTORCH_CACHE_DIR or pass --directory (programs cache only "
            "where you tell them to)"
        )
    if not chosen.is_dir():
        raise OptionsError(f"{chosen} is not a directory; nothing was cached there yet")
    return chosen


def list_cache(directory: Path | None) -> None:
    """Print one line an executable."""
    import datetime

    from rich.table import Table

    from torchkiln.runtime.cache._cache import ExecutableCache

    path = _find(directory)
    entries = ExecutableCache(path, Options().cache_limit_bytes).entries()
    table = Table(title=f"{len(entries)} executables in {path}", title_justify="left")
    for column in ("last used", "size", "program", "key"):
        table.add_column(column, justify="right" if column == "size" else "left")
    for entry in entries:
        used = datetime.datetime.fromtimestamp(entry.last_used_s).strftime("%Y-%m-%d %H:%M")
        size = f"{entry.size_bytes / 2**20:.1f} MB"
        table.add_row(used, size, entry.description, entry.key[:12])
    total = sum(entry.size_bytes for entry in entries)
    console = make_console(plain_width=130)
    console.print(table)
    console.print(f"{total / 2**20:.1f} MB in total; `torchkiln cache clear` frees it")


def clear_cache(directory: Path | None) -> None:
    """Delete all executables and say how much that freed."""
    from torchkiln.runtime.cache._cache import ExecutableCache

    path = _find(directory)
    freed = ExecutableCache(path, Options().cache_limit_bytes).clear()
    make_console().print(f"freed {freed / 2**20:.1f} MB in {path}")
