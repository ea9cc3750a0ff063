"""Trace channels on Torchkiln's trace hooks.

Nothing is recorded unless `PVTI_OPTIONS` is set, or somebody else listens.
"""

from __future__ import annotations

import contextlib
from typing import TypeVar

from poptorch._errors import translated
from torchkiln.core import instrument, span

T = TypeVar("T")


class Channel:
    """A named row of a trace."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"Channel({self.name!r})"

    def tracepoint(self, label: str) -> contextlib.AbstractContextManager[None]:
        """Return a context manager whose body is one labelled stretch of the channel."""
        return span(self.name, label)

    def instrument(self, obj: T, *methods: str) -> T:
        """Make each call of the named methods of `obj` a stretch of the channel."""
        with translated():
            return instrument(obj, self.name, *methods)


__all__ = ["Channel"]
