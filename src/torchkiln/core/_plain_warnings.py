"""Warnings and log messages of a command: one line each, without the source line that made them."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from typing import Literal

LogLevel = Literal["debug", "info", "warning", "error"]
# What torch reads when it is loaded. It has no word for warnings, which it shows anyway.
_TORCH_LOGS = {"debug": "+all", "info": "all", "error": "-all"}


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
    """Show log messages of Torchkiln and of torch from `level` on; Torchkiln's are one line each.

    `error` hides warnings, too. What the user says in `TORCH_LOGS` wins for torch.
    """
    number = logging.getLevelNamesMapping()[level.upper()]
    with contextlib.ExitStack() as stack:
        stack.enter_context(_ours_at(number))
        stack.enter_context(_torch_at(level, number))
        if number > logging.WARNING:
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def _ours_at(number: int) -> Iterator[None]:
    logger = logging.getLogger("torchkiln")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_PlainFormatter())
    before = logger.level
    logger.setLevel(number)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


@contextlib.contextmanager
def _torch_at(level: LogLevel, number: int) -> Iterator[None]:
    if "TORCH_LOGS" in os.environ:
        yield
        return
    logger = logging.getLogger("torch")
    before = logger.level
    # torch sets its levels when it is loaded, so that it must be told before.
    is_loaded = "torch" in sys.modules
    if is_loaded:
        logger.setLevel(number)
    elif level in _TORCH_LOGS:
        os.environ["TORCH_LOGS"] = _TORCH_LOGS[level]
    try:
        yield
    finally:
        os.environ.pop("TORCH_LOGS", None)
        if is_loaded:
            logger.setLevel(before)


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
