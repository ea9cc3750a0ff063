"""Warnings that point at the user's own line, however deep in the library they arise."""

from __future__ import annotations

import contextlib
import sys
import warnings

from torchkiln.core._own_code import OWN_FOLDERS

# Entering a context of ours passes through Python's own file.
_OWN = (*(f"{folder}/" for folder in OWN_FOLDERS), contextlib.__file__)


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the innermost frame outside this project's packages."""
    level = 2  # counted by `warnings`: 1 is this function, 2 its caller
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OWN):
        frame = frame.f_back
        level += 1
    warnings.warn(message, category, stacklevel=level)
