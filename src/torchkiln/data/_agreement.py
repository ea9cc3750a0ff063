"""Processes that train together compare what they are about to read.

If one of them had a batch more than another, or another order, training would wait for the other
for ever, or go on with data that is missing or comes twice.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, final

import torch.distributed
import torch.utils.data

from torchkiln.core import DistributedError, Options, span
from torchkiln.distributed import current
from torchkiln.distributed._group import group_of

_REMEDY = (
    "give all of them the same data, seed and arguments, and let each begin the same epochs; a "
    "loader that one process reads alone needs options with sync_gradients=False or num_processes=1"
)
_is_forked = False  # from a process that has others to talk to


def compares(options: Options) -> bool:
    """Tell whether a loader with these options has to compare its data with other processes.

    What only loads for a process of the run, such as a prefetching child or a worker of torch, does
    not: it may have inherited the connections, but the others do not know it.
    """
    if not options.synchronizes or _is_forked or torch.utils.data.get_worker_info() is not None:
        return False
    world = current()
    return world is not None and world.size > 1


def require_same_pass(options: Options, facts: Mapping[str, Any]) -> None:
    """Refuse to begin a pass over data that is another one in another process.

    Called by all processes at the first batch of an iterator, so that iterators that nobody reads
    do not count. It waits for the last of them, however long that takes.

    Args:
        options: Of the program that consumes the batches; without others to talk to, nothing
            happens.
        facts: What must be the same everywhere, by name; what users know best comes first.

    Raises:
        DistributedError: On all processes, if they differ; the message has the values of each.
    """
    if not compares(options):
        return
    world = current()
    assert world is not None
    right_place = options.process_id == world.rank
    facts = {
        **facts,
        "num_processes": options.num_processes,
        "process_id": "that of its rank" if right_place else options.process_id,
    }
    group = group_of(world, options.collective_timeout_s)
    with span("data", "compare with other processes"):
        # Preparing data may take one process minutes longer than another.
        group.meet("the beginning of an epoch")
        group.require_same("what a loader reads", facts, _REMEDY)
    if options.num_processes != world.size:
        raise DistributedError(
            f"the options of a loader say num_processes={options.num_processes}, but "
            f"{world.size} processes were started; take world.options(options)"
        )


@final
class AgreedBatches:
    """An iterator over batches that compares notes before its first one.

    Args:
        batches: The iterator; its attributes are those of this one.
        agree: Does it.
    """

    def __init__(self, batches: Iterator[Any], agree: Callable[[], None]) -> None:
        self._batches = batches
        self._agree: Callable[[], None] | None = agree

    def __iter__(self) -> Iterator[Any]:
        return self

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]  # torch's iterators have a length

    def __getattr__(self, name: str) -> Any:
        if name in ("_batches", "_agree"):
            raise AttributeError(name)  # copying asks before there is anything
        return getattr(self._batches, name)

    def __next__(self) -> Any:
        if self._agree is not None:
            self._agree()
            self._agree = None
        return next(self._batches)


def _note_fork() -> None:
    global _is_forked
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        _is_forked = True


os.register_at_fork(after_in_child=_note_fork)
