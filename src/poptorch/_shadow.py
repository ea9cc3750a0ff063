"""Saying so when another `poptorch` is installed beside this one."""

from __future__ import annotations

import importlib.machinery
import sys
import warnings
from pathlib import Path


def find_other_poptorch(own_directory: Path, search_path: list[str]) -> Path | None:
    """Return the directory of another importable package `poptorch`, if there is one."""
    own = own_directory.resolve()
    for entry in search_path:
        spec = importlib.machinery.PathFinder.find_spec("poptorch", [entry or "."])
        if spec is None or spec.origin is None:
            continue
        directory = Path(spec.origin).parent.resolve()
        if directory != own:
            return directory
    return None


def warn_if_shadowing() -> None:
    """Warn which `poptorch` is in use, if another one could have been meant."""
    own = Path(__file__).parent
    other = find_other_poptorch(own, sys.path)
    if other is not None:
        warnings.warn(
            f"two packages are called poptorch: Torchkiln's in {own} is in use, the one in {other} "
            "(Graphcore's?) is not; uninstall torchkiln or put the other one first on sys.path to "
            "use it",
            stacklevel=3,
        )
