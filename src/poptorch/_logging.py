"""The logger `poptorch::python` and the levels that programs set on it."""

from __future__ import annotations

import logging
import os
import sys
from typing import TextIO

_TRACE = 5
_OFF = logging.CRITICAL + 10
_LEVELS = {
    "TRACE": _TRACE,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERR": logging.ERROR,
    "OFF": _OFF,
}
# The original's numbers; 5 is not one of them.
_NUMBERS = {0: "TRACE", 1: "DEBUG", 2: "INFO", 3: "WARN", 4: "ERR", 6: "OFF"}
# Levels that only the original's native part knows; they are the nearest Python one here.
_NATIVE_LEVELS = {"DEBUG_IR": "DEBUG", "TRACE_ALL": "TRACE"}

logger = logging.getLogger("poptorch::python")


class _StandardStream(logging.StreamHandler):
    """Writes to the current sys.stdout or sys.stderr, also after somebody has replaced it."""

    def __init__(self, name: str) -> None:
        logging.Handler.__init__(self)
        self._stream_name = name

    @property
    def stream(self) -> TextIO:
        return getattr(sys, self._stream_name)


def setLogLevel(level: int | str) -> None:
    """Show messages of `level` and above: a name (WARN) or the original's number (3).

    Raises:
        ValueError: for any other name or number.
    """
    if isinstance(level, str):
        if level not in _LEVELS:
            names = sorted(_LEVELS)
            raise ValueError(
                f"Unknown log level: {level}. Valid values are "
                f"{', '.join(names[:-1])} and {names[-1]}"
            )
        logger.setLevel(_LEVELS[level])
        return
    if level not in _NUMBERS:
        raise ValueError(
            f"Invalid log level integer {level!r}; use one of {sorted(_NUMBERS)} or a name"
        )
    logger.setLevel(_LEVELS[_NUMBERS[level]])


def configure_from_environment() -> None:
    """Apply POPTORCH_LOG_LEVEL and POPTORCH_LOG_DEST; repeated calls do not add handlers."""
    destination = os.environ.get("POPTORCH_LOG_DEST", "stderr")
    handler: logging.Handler
    if destination in ("stderr", "stdout"):
        handler = _StandardStream(destination)
    else:
        handler = logging.FileHandler(destination, delay=True)
    handler.setFormatter(
        logging.Formatter("[%(asctime)s] [poptorch::python] [%(levelname)s] %(message)s")
    )
    for old in list(logger.handlers):
        logger.removeHandler(old)
        old.close()
    logger.addHandler(handler)
    level = os.environ.get("POPTORCH_LOG_LEVEL", "") or "WARN"
    try:
        setLogLevel(_NATIVE_LEVELS.get(level.upper(), level.upper()))
    except ValueError as error:
        raise ValueError(f"environment variable POPTORCH_LOG_LEVEL={level}: {error}") from None


logging.addLevelName(_TRACE, "TRACE")
configure_from_environment()
