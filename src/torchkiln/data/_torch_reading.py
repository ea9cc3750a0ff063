"""Reading torch's own loaders so that nothing is lost without a word, and nothing is left behind.

torch takes a StopIteration of the dataset for the end of the data, waits for ever for a batch that
a worker could not pickle, keeps workers that were killed for the next pass, and lets every worker
make a folder in the system's temporary directory that stays if the worker is killed.
"""

from __future__ import annotations

import contextlib
import copy
import errno
import os
import pickle
import time
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any, final

import torch.utils.data
from torch.utils.data import IterableDataset, MapDataPipe

from torchkiln.core import (
    ArgumentError,
    WorkerError,
    hand_over,
    instrument,
    is_traced,
    name_process,
    span,
    take_over,
)
from torchkiln.core._beacon import waiting_for_data
from torchkiln.data._errors import DatasetError, LoaderError
from torchkiln.data._process_end import describe_end
from torchkiln.data._socket_names import share_without_file, use_cleaned_folder
from torchkiln.data._stopped import describe_stopped, watch_stopped
from torchkiln.data._unpicklable import find_unpicklable
from torchkiln.data._user_code import UserCode, UserDataset, call_user_code, describe_stop
from torchkiln.torch_internals._data_loading import (
    end_workers,
    keep_iterator,
    kept_iterator,
    workers_of,
)

# A connection can break before the system says that the process at its other end is dead.
_DEATH_GRACE_S = 1.0
# torch's words for a worker that left, for an error that a worker met, and for a tensor that finds
# no room in /dev/shm; they have no types of their own.
_ENDED_BY_ITSELF = "exited unexpectedly"
_RAISED_IN_WORKER = "in DataLoader worker process"
_SHARED_MEMORY_FULL = "unable to allocate shared memory"
# Torch's own errors hold the system's words, but not its number.
_TOO_MANY_FILES = tuple(os.strerror(number) for number in (errno.EMFILE, errno.ENFILE))
# Where torch's iterator carries the workers that were ended because they were stopped.
_STOPPED = "_torchkiln_stopped"
# Whether each worker leaves the process group of this process.
_workers_leave_group = True


def keep_workers_in_group() -> None:
    """Let workers stay in the process group of this process, so that they end with the group."""
    global _workers_leave_group
    _workers_leave_group = False


def read_torch_loader(loader: Any, begin: Callable[[Any], Iterator[Any]] = iter) -> Iterator[Any]:
    """Return an iterator over a pass of torch's `DataLoader`.

    Args:
        loader: Of torch's class, or an heir. It keeps its persistent workers.
        begin: How a pass is begun.

    Raises:
        LoaderError: Workers that do not fork are to be given something that cannot be pickled.
        WorkerError: A worker was killed while the pass was begun.
    """
    if loader.num_workers and _find_dead(kept_iterator(loader)):
        _drop_workers(loader, kept_iterator(loader))  # killed since the last pass: start others
    guarded = copy.copy(loader)
    changes: dict[str, Any]
    if loader.num_workers:
        if _start_method(loader) == "forkserver":
            use_cleaned_folder()
        # Not the dataset: workers hand it to code of the user, by `get_worker_info()`.
        changes = {
            "collate_fn": _SendingCollate(loader.collate_fn),
            "worker_init_fn": _WorkerStart(loader.worker_init_fn),
        }
    else:
        changes = {"collate_fn": UserCode(loader.collate_fn, "collate")}
        if not isinstance(loader.dataset, IterableDataset | MapDataPipe):
            changes["dataset"] = UserDataset(loader.dataset)
    vars(guarded).update(changes)  # torch guards some against changes; the copy is not in use yet
    try:
        batches = begin(guarded)
    except Exception as error:
        _explain_start(loader, error)
        raise
    keep_iterator(loader, kept_iterator(guarded))
    return _WorkerBatches(loader, batches) if loader.num_workers else batches


@final
class _WorkerBatches:
    """What torch's workers made, with errors that tell what happened to them."""

    def __init__(self, loader: Any, batches: Any) -> None:
        self._loader = loader
        self._batches = batches
        if not hasattr(batches, _STOPPED):  # persistent workers keep their iterator
            pids = [worker.pid for worker in workers_of(batches)]
            setattr(batches, _STOPPED, watch_stopped(batches, pids))

    def __iter__(self) -> Iterator[Any]:
        return self

    def __len__(self) -> int:
        return len(self._batches)

    def __getattr__(self, name: str) -> Any:
        # Programs end workers by `_shutdown_workers`, and look at `_workers`, of torch's iterator.
        if name in ("_batches", "_loader"):
            raise AttributeError(name)  # copying asks before there is anything
        return getattr(self._batches, name)

    def __next__(self) -> Any:
        try:
            with span("data", "wait for batch"), waiting_for_data:
                return next(self._batches)
        except StopIteration as end:
            if end.value is None:
                raise
            # torch ends a pass without a value; an error of a worker that it raises again has one.
            stopped = describe_stop("code of the dataset")
            raise DatasetError(f"{stopped}\n\n{end.value}") from None
        except Exception as error:
            try:
                _explain_failure(self._loader, self._batches, error)
            except WorkerError:
                self._batches = iter(())
                raise
            raise


def _explain_failure(loader: Any, batches: Any, error: Exception) -> None:
    """Raise `WorkerError` if workers were killed, or found no room for a batch."""
    dead = _find_dead(batches, wait=isinstance(error, OSError | EOFError))
    if not dead and (_ENDED_BY_ITSELF in str(error) or _is_broken_connection(error)):
        # A worker that calls it a day says that all is well: exit code 0.
        dead = [worker for worker in workers_of(batches) if worker.exitcode is not None]
    if dead:
        described = []
        for worker in dead:
            if worker.pid in getattr(batches, _STOPPED, ()):
                described.append(f"worker {describe_stopped(worker.pid)}")
                continue
            how, remedy = describe_end(worker.exitcode)
            described.append(f"worker process (pid {worker.pid}) {how}; {remedy}")
        _drop_workers(loader, batches)
        raise WorkerError(
            f"the pass over the data cannot go on: {'. '.join(described)}. "
            "The next pass starts new workers"
        ) from error
    if _SHARED_MEMORY_FULL in str(error):
        raise WorkerError(
            f"a worker process found no room for a batch in /dev/shm{_size_of_shared_memory()}; "
            "enlarge it (docker run --shm-size), use fewer workers or smaller batches, or load "
            "with num_workers=0 and mode='async', which does not need it"
        ) from error


def _is_broken_connection(error: Exception) -> bool:
    """Tell whether it is this process that lost a worker, not a worker that lost something."""
    return isinstance(error, ConnectionError | EOFError) and _RAISED_IN_WORKER not in str(error)


def _explain_start(loader: Any, error: Exception) -> None:
    """Raise a better error than torch's if workers cannot be started or are gone."""
    if not loader.num_workers:
        return
    if kept_iterator(loader) is not None:
        _explain_failure(loader, kept_iterator(loader), error)
    if _start_method(loader) == "fork":
        return  # forked workers take anything, so it was something else
    for name in ("dataset", "collate_fn", "worker_init_fn"):
        culprit = find_unpicklable(getattr(loader, name), name)
        if culprit is not None:
            raise LoaderError(
                f"worker processes cannot be given {culprit}; make it picklable, or pass "
                "multiprocessing_context='fork'"
            ) from error


def _start_method(loader: Any) -> str:
    context = loader.multiprocessing_context or torch.multiprocessing
    return str(context.get_start_method())


def _find_dead(batches: Any, *, wait: bool = False) -> list[Any]:
    """Return the worker processes that ended though nobody told them to."""
    deadline_s = time.monotonic() + (_DEATH_GRACE_S if wait else 0.0)
    while True:
        # torch's handler of SIGCHLD raises wherever the program happens to be.
        with contextlib.suppress(RuntimeError):
            dead = [worker for worker in workers_of(batches) if worker.exitcode not in (None, 0)]
            if dead or time.monotonic() >= deadline_s:
                return dead
            time.sleep(0.01)


def _drop_workers(loader: Any, batches: Any) -> None:
    if kept_iterator(loader) is batches:
        keep_iterator(loader, None)
    end_workers(batches)


def _size_of_shared_memory() -> str:
    try:
        status = os.statvfs("/dev/shm")
    except OSError:
        return ""
    return f", which has {status.f_blocks * status.f_frsize / 2**20:.0f} MB"


@final
class _WorkerStart:
    """What a worker does first."""

    def __init__(self, init: Callable[[int], None] | None) -> None:
        self._init = init
        self._leaves_group = _workers_leave_group
        self._trace = hand_over()

    def __call__(self, worker_id: int) -> None:
        # A group of its own: Ctrl-C in a terminal, and signals that launchers such as torchrun send
        # to groups, reach the program alone, which decides what they mean.
        if self._leaves_group:
            with contextlib.suppress(OSError):
                os.setpgid(0, 0)
        share_without_file()
        take_over(self._trace)
        name_process(f"worker {worker_id}")
        if is_traced():
            _trace_access(torch.utils.data.get_worker_info())
        if self._init is not None:
            call_user_code(self._init, worker_id)


def _trace_access(info: Any) -> None:
    """Mark how a worker reads its dataset; only while a run is recorded, and only in the worker."""
    dataset = info.dataset
    name = "__getitems__" if hasattr(dataset, "__getitems__") else "__getitem__"
    # Iterable datasets have neither, and the type of some objects cannot be exchanged.
    with contextlib.suppress(AttributeError, ArgumentError):
        instrument(dataset, "data", name)


@final
class _SendingCollate:
    """Makes a batch in a worker, ready to be sent.

    torch leaves pickling to a thread that drops what cannot be pickled; the program would wait for
    the batch for ever.
    """

    def __init__(self, collate: Callable[..., Any]) -> None:
        self._collate = collate

    def __call__(self, samples: Any) -> Any:
        with span("data", "collate"):
            batch = call_user_code(self._collate, samples)
        try:
            return _Sent(bytes(ForkingPickler.dumps(batch)))
        except Exception as error:
            if _SHARED_MEMORY_FULL in str(error):
                raise
            if any(words in str(error) for words in _TOO_MANY_FILES):
                raise _too_many_files(error) from error
            raise cannot_be_sent(batch, error) from error


def _too_many_files(error: Exception) -> WorkerError:
    return WorkerError(
        f"a worker process has no files left for a batch ({error}): every tensor takes one until "
        "the program has read it; raise `ulimit -n`, or call "
        "torch.multiprocessing.set_sharing_strategy('file_system'), or return fewer, larger tensors"
    )


def cannot_be_sent(batch: Any, error: Exception) -> DatasetError:
    """Return the error for a batch that cannot be pickled."""
    culprit = find_unpicklable(batch, "batch") or f"{type(error).__name__}: {error}"
    return DatasetError(
        f"a batch of type {type(batch).__name__} cannot be sent to the program's process: "
        f"{culprit}; return tensors, or objects that can be pickled, or load in mode sync without "
        "workers"
    )


@final
class _Sent:
    """A pickled batch; what arrives is the batch itself."""

    def __init__(self, payload: bytes) -> None:
        self._payload = payload

    def __reduce__(self) -> tuple[Any, ...]:
        return _receive, (self._payload,)


def _receive(payload: bytes) -> Any:
    return call_user_code(pickle.loads, payload)
