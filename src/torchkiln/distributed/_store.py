"""`Board`: short texts that processes leave for each other, outside of collectives."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, final

from torchkiln.torch_internals._distributed import default_store

T = TypeVar("T")

# A store answers within milliseconds. One that needs longer than this cannot be reached.
_ANSWER_S = 10.0


class StoreGoneError(Exception):
    """The store does not answer: the process that it lived in ended, or cannot be reached."""


@final
class Board:
    """Texts under names, which all processes of a run see, and which last as long as the run.

    Every method raises StoreGoneError instead of waiting for ever; after that, at once.

    Args:
        name: What the names are below, so that several boards do not meet.
        store: Where it is; None: the one of the process group.
        patience_s: How long an answer may take.
    """

    def __init__(self, name: str, store: Any = None, patience_s: float = _ANSWER_S) -> None:
        self._name = name
        self.patience_s = patience_s
        self._is_gone = False
        # A connection of its own: what another thread waits for at the store holds nobody up here.
        self._store = answer_soon((store or default_store()).clone, patience_s)

    def put(self, key: str, text: str) -> None:
        """Leave a text."""
        self._ask(lambda: self._store.set(self._full(key), text))

    def claim(self, key: str, text: str) -> bool:
        """Leave a text, and return whether there was none before."""
        kept: bytes = self._ask(lambda: self._store.compare_set(self._full(key), "", text))
        return kept.decode() == text

    def has(self, keys: Iterable[str]) -> bool:
        """Whether all of these are there."""
        full = [self._full(key) for key in keys]
        found: bool = self._ask(lambda: self._store.check(full))
        return found

    def read(self, key: str) -> str | None:
        """Return a text, or None if it is not there."""
        # A `get` of something that is not there would wait for it.
        if not self.has([key]):
            return None
        content: bytes = self._ask(lambda: self._store.get(self._full(key)))
        return content.decode()

    def _full(self, key: str) -> str:
        return f"{self._name}/{key}"

    def _ask(self, question: Callable[[], T]) -> T:
        if self._is_gone:
            raise StoreGoneError("it did not answer before")
        try:
            return answer_soon(question, self.patience_s)
        except StoreGoneError:
            self._is_gone = True
            raise


def answer_soon(question: Callable[[], T], patience_s: float) -> T:
    """Return the answer of a store, or raise StoreGoneError with what torch said.

    torch waits without end for a host that was cut off, or for a server that is no store, so
    another thread does the waiting.
    """
    answers: list[T] = []
    errors: list[BaseException] = []

    def ask() -> None:
        try:
            answers.append(question())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=ask, name="torchkiln-store", daemon=True)
    thread.start()
    thread.join(patience_s)
    if answers:
        return answers[0]
    if errors and not isinstance(errors[0], RuntimeError):
        raise errors[0]
    raise StoreGoneError(str(errors[0]) if errors else f"no answer within {patience_s:g} s")
