"""Recomputing a checkpointed block with the random numbers of its forward.

`torch.utils.checkpoint` puts the generator back before it recomputes. That happens in Python, while
a step is recorded, and leaves no trace in the graph: dropout would draw another mask for backward
than for forward. So the numbers themselves are kept, and recomputation reads them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self

import torch
import torch.utils.checkpoint as torch_checkpoint

from torchkiln.core import CaptureError
from torchkiln.runtime.passes._stages import Region
from torchkiln.torch_internals._autograd import TorchDispatchMode, schema_of
from torchkiln.torch_internals._fx import map_tensors
from torchkiln.torch_internals._libraries import checkpoint_contexts_replaced


class _Keep(TorchDispatchMode):
    """Keeps the result of every random operation."""

    def __init__(self) -> None:
        super().__init__()
        self.draws: list[Any] = []
        self.region = Region()

    def __enter__(self) -> Self:
        self.region.begin()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        if not any(error):
            self.region.end()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if _is_random(func):
            # A copy: dropout goes on to scale its mask in place.
            self.draws.append(map_tensors(torch.clone, result))
        return result


class _Replay(TorchDispatchMode):
    """Gives back what `_Keep` kept, in order, each time it is entered."""

    def __init__(self, kept: _Keep) -> None:
        super().__init__()
        self._kept = kept
        self._next = iter(kept.draws)
        self._inside = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self._next = iter(self._kept.draws)
        self._inside.enter_context(self._kept.region.repeated())
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        try:
            super().__exit__(*error)
        finally:
            self._inside.close()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if not _is_random(func):
            return func(*args, **(kwargs or {}))
        draw = next(self._next)
        if schema_of(func).is_mutable:
            return args[0].copy_(draw)
        return map_tensors(torch.clone, draw)


def _is_random(func: Any) -> bool:
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    written = [
        index
        for index, argument in enumerate(schema_of(func).arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    if written not in ([], [0]):
        raise CaptureError(
            f"{func} draws random numbers in a way that a checkpointed block cannot repeat; move "
            "it out of torch.utils.checkpoint"
        )
    return True


@contextlib.contextmanager
def replayed_checkpoints() -> Iterator[None]:
    """Let blocks that are checkpointed meanwhile repeat their random numbers in backward."""
    with checkpoint_contexts_replaced(_with_replay):
        yield


def _with_replay(context_fn: Callable[[], tuple[Any, Any]]) -> Callable[[], tuple[Any, Any]]:
    def contexts() -> tuple[Any, Any]:
        keep = _Keep()
        replay = _Replay(keep)
        if context_fn is torch_checkpoint.noop_context_fn:
            return keep, replay
        forward, recompute = context_fn()
        return _both(forward, keep), _both(recompute, replay)

    return contexts


class _both:  # noqa: N801 - used like a function
    """Two context managers as one that can be entered again."""

    def __init__(self, *contexts: Any) -> None:
        self._contexts = contexts

    def __enter__(self) -> None:
        for context in self._contexts:
            context.__enter__()

    def __exit__(self, *error: Any) -> None:
        for context in reversed(self._contexts):
            context.__exit__(*error)
