"""Trace channels on Torchkiln's trace hooks; nothing is recorded until somebody listens."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any, TypeVar

from torchkiln.core import span

T = TypeVar("T")


class Channel:
    """A named row of a trace."""

    def __init__(self, name: str) -> None:
        self.name = name

    def tracepoint(self, label: str) -> contextlib.AbstractContextManager[None]:
        """Return a context manager whose body is one labelled stretch of the channel."""
        return span(self.name, label)

    def instrument(self, obj: T, *methods: str) -> T:
        """Make each call of the named methods of `obj` a stretch of the channel."""
        for name in methods:
            setattr(obj, name, self._traced(name, getattr(obj, name)))
        return obj

    def _traced(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def traced(*args: Any, **kwargs: Any) -> Any:
            with self.tracepoint(name):
                return method(*args, **kwargs)

        return traced


__all__ = ["Channel"]
