"""Warnings and log messages of a command: one line each, without the source line that made them."""

from __future__ import annotations

import contextlib
import logging
import sys
import warnings
from collections.abc import Iterator
from typing import Literal

LogLevel = Literal["debug", "info", "warning", "error"]
_LOGGERS = ("torchkiln", "torch")


@contextlib.contextmanager
def plain_messages() -> Iterator[None]:
    """Show each warning as `warning: ...` on one line for as long as this lasts.

    Whoever types a command did not write the line of Python that Python would show with it.
    """
    before = warnings.formatwarning
    warnings.formatwarning = _format_plainly
    try:
        yield
    finally:
        warnings.formatwarning = before


@contextlib.contextmanager
def logging_at(level: LogLevel) -> Iterator[None]:
    """Show log messages of Torchkiln and of torch from `level` on, one line each.

    `error` hides warnings, too; they are still counted as given.
    """
    number = logging.getLevelNamesMapping()[level.upper()]
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_PlainFormatter())
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    before = [(logger.level, logger.propagate) for logger in loggers]
    for logger in loggers:
        logger.setLevel(number)
    ours = loggers[0]
    ours.addHandler(handler)
    ours.propagate = False  # torch shows its own
    try:
        with warnings.catch_warnings() if number > logging.WARNING else contextlib.nullcontext():
            if number > logging.WARNING:
                warnings.simplefilter("ignore")
            yield
    finally:
        ours.removeHandler(handler)
        for logger, (old_level, old_propagate) in zip(loggers, before, strict=True):
            logger.setLevel(old_level)
            logger.propagate = old_propagate


def _format_plainly(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    line: str | None = None,
) -> str:
    return f"warning: {_one_line(str(message))}\n"


class _PlainFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return f"{record.levelname.lower()}: {_one_line(record.getMessage())}"


def _one_line(text: str) -> str:
    return " ".join(text.split())
