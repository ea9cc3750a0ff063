"""The workers behind torch's `DataLoader`."""

from __future__ import annotations

from typing import Any

import torch.utils.data

_signal_handling: Any = torch.utils.data._utils.signal_handling


def kept_iterator(loader: Any) -> Any:
    """Return the iterator whose workers the loader keeps for its next pass, or None.

    torch: with `persistent_workers`, `iter(loader)` puts it into `_iterator` and takes it from
        there again.
    for: workers that were killed between two passes are found before the second one.
    """
    return loader._iterator


def keep_iterator(loader: Any, iterator: Any) -> None:
    """Let the loader use the workers of `iterator` in its next pass; None: new workers.

    torch: as `kept_iterator`.
    for: a copy of the loader reads, and the user's own loader keeps the workers.
    """
    loader._iterator = iterator


def forget_length(loader: Any) -> None:
    """Let the loader forget how long it said that its data are.

    torch: `len(loader)` of an iterable dataset is kept in `_IterableDataset_len_called`, and a
        longer pass warns.
    for: a copy in another process reads another number of elements.
    """
    loader._IterableDataset_len_called = None


def workers_of(iterator: Any) -> list[Any]:
    """Return the worker processes behind an iterator; none for None, or without workers.

    torch: `_workers` holds processes, with `pid`, `exitcode` and `kill`.
    for: an error tells which worker was killed, and how.
    """
    return list(getattr(iterator, "_workers", ()))


def end_workers(iterator: Any) -> None:
    """Kill the workers of an iterator and let torch forget them.

    A worker that died may have held a lock that the others wait for, so they are not asked.

    torch: workers whose pids are registered for SIGCHLD are reported when they die, so they are
        taken out (`_remove_worker_pids`, `_worker_pids_set`) first; `_shutdown_workers` joins them.
    for: after a `WorkerError` the next pass starts new workers, and no process is left.
    """
    if iterator._worker_pids_set:
        _signal_handling._remove_worker_pids(id(iterator))
        iterator._worker_pids_set = False
    for worker in iterator._workers:
        worker.kill()
    iterator._shutdown_workers()
