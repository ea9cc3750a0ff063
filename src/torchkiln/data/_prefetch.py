"""`AsyncPrefetcher`: batches that another process made while the program was running."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterable, Iterator, Sized
from typing import Any, assert_never, cast, final

import torch
import torch.utils.data
from torch import Tensor

from torchkiln.core import WorkerError, hand_over, span, to_choice
from torchkiln.core._beacon import waiting_for_data
from torchkiln.data._errors import (
    EmptyDatasetError,
    LoaderError,
    PrefetchError,
    RebatchError,
    TerminatedError,
)
from torchkiln.data._messages import Begin, Failed, Finished, Ready
from torchkiln.data._prefetch_child import ChildSettings
from torchkiln.data._prefetch_handle import ChildHandle, StartMethod
from torchkiln.data._structure import map_tensors
from torchkiln.data._user_code import call_user_code
from torchkiln.torch_internals._data_loading import forget_length, keep_iterator


@final
class AsyncPrefetcher:
    """Iterates over `source` in a child process, up to `buffer_size` batches ahead.

    A process and not a thread, because a running program holds the interpreter lock. The child is
    started by the first `iter()` (or at once, see `early_preload`) and reads the source as it was
    at that moment; it lives until `terminate()`, until the prefetcher and its iterators are
    dropped, or until the interpreter exits.

    Tensors arrive in shared memory that is used again once you hold no reference to any tensor of
    the batch (or view of one). So a batch never changes under your hands, and a batch that you keep
    costs its memory.

    A new `iter()` starts from the beginning, and ends the iterator before it.

    Args:
        source: An iterable, a map-style dataset, or a loader that is not asynchronous itself.
        buffer_size: Batches that wait for the program at most.
        load_indefinitely: Begin the next pass as soon as one is loaded; otherwise when it is asked
            for.
        early_preload: Start the child and fill the buffer now (while the program compiles, say).
        checks_source: Start it now, and wait for the first batch, so that a source that cannot be
            read, or is empty, is an error here.
        start_method: See `StartMethod`.
        rebatched_size: Cut and join what the source yields into batches of this size.
        drop_last: Whether an incomplete last batch of `rebatched_size` is dropped; None does what
            the source does, if it is a loader, and else drops it.
        cores: Processor cores for the child; None lets it run where this thread may. Set it if
            you pin threads: a child inherits the pinning of the thread that starts it.
        pin_memory: Copy batches to page-locked memory, for transfers to an accelerator.

    Raises:
        LoaderError: An argument is out of range.
        PrefetchError: `source` is asynchronous already.
        WorkerError, EmptyDatasetError: With `checks_source`, if it cannot be read, or is empty.
    """

    def __init__(
        self,
        source: Iterable[Any] | Any,
        *,
        buffer_size: int = 3,
        load_indefinitely: bool = True,
        early_preload: bool = False,
        checks_source: bool = False,
        start_method: StartMethod | str = StartMethod.AUTO,
        rebatched_size: int | None = None,
        drop_last: bool | None = None,
        cores: Iterable[int] | None = None,
        pin_memory: bool = False,
    ) -> None:
        if isinstance(source, AsyncPrefetcher) or getattr(source, "_prefetcher", None) is not None:
            raise PrefetchError(
                f"{type(source).__name__} loads asynchronously already; iterate over it, or pass "
                "a loader of mode sync"
            )
        _require_positive(buffer_size, "buffer_size", LoaderError)
        if rebatched_size is not None:
            _require_positive(rebatched_size, "rebatched_size", RebatchError)
        self._source = _detach(source)
        self._start_method = to_choice(StartMethod, start_method, "start_method", LoaderError)
        self._buffer_size = buffer_size
        self._load_indefinitely = load_indefinitely
        self._rebatched_size = rebatched_size
        if drop_last is None:
            drop_last = bool(getattr(source, "drop_last", True))
        self._drop_last = drop_last
        self._cores = None if cores is None else frozenset(cores)
        self._pin_memory = pin_memory
        self._child: ChildHandle | None = None
        self._terminated = False
        self._asked = Begin(-1, -1)
        self._next_epoch: int | None = None
        self._preloaded = False
        self._first: Ready | None = None
        if early_preload or checks_source:
            self._begin_pass()
            self._preloaded = True
        if checks_source:
            self._first = self._wait_for_batch()

    def __len__(self) -> int:
        """Return the number of batches in a pass, if the source knows it."""
        if self._rebatched_size is None:
            return len(cast(Sized, self._source))
        elements = _num_elements(self._source)
        if self._drop_last:
            return elements // self._rebatched_size
        return -(-elements // self._rebatched_size)

    def __iter__(self) -> Iterator[Any]:
        self._check_open()
        if not self._preloaded:
            self._begin_pass()
        self._preloaded = False
        return _Pass(self, self._asked.generation)

    @property
    def next_epoch(self) -> int:
        """The epoch that the next iterator yields."""
        if self._next_epoch is not None:
            return self._next_epoch
        return self._asked.epoch if self._preloaded else self._asked.epoch + 1

    def set_epoch(self, epoch: int) -> None:
        """Make `epoch` the one that the next iterator yields, for sources that depend on it."""
        self._next_epoch = epoch
        self._preloaded = False

    def terminate(self) -> None:
        """Stop the child process and free its memory; the prefetcher cannot be read any more.

        Batches that were handed out stay valid.
        """
        self._terminated = True
        self._close()

    def next_batch(self, generation: int) -> Any:
        """Return the next batch of a pass, or raise StopIteration at its end."""
        self._check_open()
        if generation != self._asked.generation:
            raise PrefetchError(
                "this iterator was ended by a newer iter() on the same loader: there is one "
                "child process, and it makes one pass at a time; use a second loader"
            )
        with span("data", "wait for batch"), waiting_for_data:
            ready, self._first = self._first, None
            if ready is None or ready.generation != generation:
                ready = self._wait_for_batch()
        if ready is None or self._child is None:
            raise StopIteration
        with self._closing_on_error():
            batch = call_user_code(self._child.take, ready.slot, ready.payload)
        if self._pin_memory and torch.accelerator.is_available():
            return map_tensors(Tensor.pin_memory, batch)
        return batch

    def _check_open(self) -> None:
        if self._terminated:
            raise TerminatedError(
                "the loader was terminated and its process is gone; make a new loader to iterate"
            )

    def _begin_pass(self) -> None:
        generation, epoch = self._asked.generation + 1, self._asked.epoch + 1
        if self._next_epoch is not None:
            # The child may have begun the next generation by itself, with another epoch.
            generation, epoch = generation + 1, self._next_epoch
            self._next_epoch = None
        self._asked = Begin(generation, epoch)
        if self._child is not None and not self._child.is_alive():
            self._close()
        self._ask_child()

    def _ask_child(self) -> None:
        if self._child is None:
            self._child = ChildHandle(self._source, self._start_method, self._settings())
        self._child.send(self._asked)

    def _settings(self) -> ChildSettings:
        # From the global generator, so that manual_seed decides the order in the child too, and a
        # second loader gets another one.
        seed = int(torch.empty((), dtype=torch.int64).random_().item())
        return ChildSettings(
            buffer_size=self._buffer_size,
            load_indefinitely=self._load_indefinitely,
            rebatched_size=self._rebatched_size,
            drop_last=self._drop_last,
            cores=self._cores,
            seed=seed,
            trace=hand_over(),
        )

    def _wait_for_batch(self) -> Ready | None:
        """Return the next batch of the pass that was asked for, or None at its end."""
        while self._child is not None:
            with self._closing_on_error():
                message = self._child.receive()
            if message.generation < self._asked.generation:
                if isinstance(message, Failed):
                    # What nobody wants any more must not fail the pass that was asked for.
                    self._close()
                    self._ask_child()
                continue
            match message:
                case Ready():
                    return message
                case Finished(num_batches=0):
                    raise EmptyDatasetError(self._describe_empty())
                case Finished():
                    return None
                case Failed():
                    self._close()
                    raise WorkerError(
                        f"loading a batch failed in the prefetching process with {message.error}"
                        f"\n\nOriginal traceback of the process:\n{message.traceback}"
                    )
                case _:
                    assert_never(message)
        return None

    def _describe_empty(self) -> str:
        source = self._source
        text = f"{type(source).__name__} gave no batch in this pass"
        size = getattr(source, "combined_batch_size", None) or self._rebatched_size
        if size is not None:
            return (
                f"{text}: it needs {size} elements for one (drop_last={self._drop_last}); "
                "check the dataset's length, or lower the batch size"
            )
        return f"{text}: it is empty, or a generator that can be read only once"

    @contextlib.contextmanager
    def _closing_on_error(self) -> Iterator[None]:
        """Give the child up if talking to it fails; the next pass starts another one.

        An interrupt counts: half a message may have been read, and the rest makes no sense.
        """
        try:
            yield
        except BaseException:
            self._close()
            raise

    def _close(self) -> None:
        self._first = None
        if self._child is not None:
            self._child.close()
            self._child = None


@final
class _Pass:
    """One iterator over a prefetcher; it keeps the prefetcher alive."""

    def __init__(self, prefetcher: AsyncPrefetcher, generation: int) -> None:
        self._prefetcher: AsyncPrefetcher | None = prefetcher
        self._generation = generation

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._prefetcher is None:
            raise StopIteration
        try:
            return self._prefetcher.next_batch(self._generation)
        except (StopIteration, WorkerError, EmptyDatasetError):
            self._prefetcher = None
            raise


def _detach(source: Any) -> Any:
    """Return `source` without workers of this process, which a forked child would share with it."""
    if not isinstance(source, torch.utils.data.DataLoader):
        return source
    source = copy.copy(source)
    keep_iterator(source, None)
    forget_length(source)
    return source


def _require_positive(value: Any, name: str, error: type[LoaderError]) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise error(f"{name} must be a positive int, got {value!r}")


def _num_elements(source: Any) -> int:
    """Return how many elements a torch loader yields in a pass, in all its batches."""
    sampler, size = getattr(source, "sampler", None), getattr(source, "batch_size", None)
    if sampler is None or size is None or not hasattr(sampler, "__len__"):
        raise TypeError(
            f"the number of batches of {type(source).__name__} is unknown once it is rebatched"
        )
    elements = len(sampler)
    return elements // size * size if source.drop_last else elements
