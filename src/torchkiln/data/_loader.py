"""`DataLoader`: torch's loader with batches as large as one call of a program consumes."""

from __future__ import annotations

import copy
import enum
import functools
from collections.abc import Iterable, Iterator, Mapping, Sized
from typing import Any, Self

import torch.utils.data
from torch.utils.data import BatchSampler, Dataset, IterableDataset, Sampler

from torchkiln.core import Options, to_choice, warn_user
from torchkiln.data._agreement import AgreedBatches, compares, require_same_pass
from torchkiln.data._errors import (
    BatchSamplerError,
    LoaderError,
    LoaderWarning,
    RebatchError,
)
from torchkiln.data._partition import PartitionSampler, make_partition
from torchkiln.data._pieces import PieceSampler
from torchkiln.data._prefetch import AsyncPrefetcher
from torchkiln.data._regroup import join_groups, rebatch
from torchkiln.data._torch_reading import read_torch_loader
from torchkiln.torch_internals._data_loading import forget_length


class LoaderMode(enum.Enum):
    """Where batches are made."""

    SYNC = "sync"  # in this process (or torch's workers), while the program waits
    ASYNC = "async"  # in a child process, while the program runs
    ASYNC_REBATCHED = "async_rebatched"  # the same, from smaller pieces that workers load


# The mixin below calls torch's methods on itself; what it is mixed into is torch's loader.
_TorchLoader: Any = torch.utils.data.DataLoader


class CombinedLoading:
    """Lets torch's `DataLoader`, of which an heir must derive too, load combined batches.

    Calls torch's methods by name instead of through `super()`, so that it works on either side of
    torch's class: PopTorch promises loaders that derive from torch's directly. Arguments are those
    of `DataLoader`.
    """

    # Of torch's loader.
    dataset: Any
    sampler: Any
    batch_sampler: Any
    batch_size: int | None
    num_workers: int
    drop_last: bool
    pin_memory: bool
    worker_init_fn: Any

    def __init__(
        self,
        options: Options,
        dataset: Dataset[Any],
        batch_size: int | None = 1,
        *,
        shuffle: bool | None = None,
        num_workers: int = 0,
        drop_last: bool = True,
        persistent_workers: bool | None = None,
        auto_distributed_partitioning: bool = True,
        contiguous_blocks: bool | None = None,
        mode: LoaderMode | str = LoaderMode.SYNC,
        async_options: Mapping[str, Any] | None = None,
        rebatched_worker_size: int | None = None,
        batch_sampler: Sampler[list[int]] | Iterable[list[int]] | None = None,
        **kwargs: Any,
    ) -> None:
        if not isinstance(options, Options):
            raise TypeError(
                f"options must be torchkiln.Options, got {type(options).__name__}; "
                "DataLoader(options, dataset, ...)"
            )
        self._program_options = options
        self._mode = to_choice(LoaderMode, mode, "mode", LoaderError)
        self._prefetcher: AsyncPrefetcher | None = None
        self._group_size = 1
        self._drop_last_group = drop_last
        self._rebatched_size: int | None = None
        # Batches that make a combined one: of the batch sampler, or pieces that workers load.
        self._num_pieces = 1

        partition = auto_distributed_partitioning and options.num_pipelines > 1
        if batch_sampler is not None:
            _check_batch_sampler(batch_size, shuffle, partition)
            self._group_size = options.combined_factor
            _warn_about_groups(batch_sampler, self._group_size, drop_last)
            drop_last = False  # what torch wants to see beside a batch sampler
            combined_size = _times(getattr(batch_sampler, "batch_size", None), self._group_size)
            torch_batch_size: int | None = 1
        else:
            _check_batch_size(batch_size)
            combined_size = _times(batch_size, options.combined_factor)
            torch_batch_size = combined_size
        self._combined_batch_size = combined_size
        if partition:
            kwargs["sampler"] = make_partition(
                options,
                dataset,
                batch_size,
                shuffle=bool(shuffle),
                drop_last=drop_last,
                sampler=kwargs.get("sampler"),
                blocks=not options.synchronizes if contiguous_blocks is None else contiguous_blocks,
            )
            shuffle = None

        _TorchLoader.__init__(
            self,
            dataset,
            batch_size=torch_batch_size,
            shuffle=shuffle,
            num_workers=num_workers,
            drop_last=drop_last,
            persistent_workers=num_workers > 0
            if persistent_workers is None
            else persistent_workers,
            batch_sampler=batch_sampler,
            **kwargs,
        )
        self._warn_about_data()
        if self._mode is not LoaderMode.SYNC:
            source = self._make_source(rebatched_worker_size, batch_sampler is not None)
            settings = _check_async_options(async_options)
            self._prefetcher = AsyncPrefetcher(source, pin_memory=self.pin_memory, **settings)

    @property
    def options(self) -> Options:
        return self._program_options

    @property
    def mode(self) -> LoaderMode:
        return self._mode

    @property
    def combined_batch_size(self) -> int | None:
        """Size of dim 0 of every batch; None without batching, or if a batch sampler hides it."""
        return self._combined_batch_size

    def set_epoch(self, epoch: int) -> None:
        """Make `epoch` the one that the next iterator yields; to resume a distributed run.

        The order depends on it under a distributed shuffle, or if the sampler has a `set_epoch`.
        """
        if self._prefetcher is not None:
            self._prefetcher.set_epoch(epoch)
        else:
            for sampler in (self.sampler, self.batch_sampler):
                set_epoch = getattr(sampler, "set_epoch", None)
                if set_epoch is not None:
                    set_epoch(epoch)

    def terminate(self) -> None:
        """Stop the prefetching process, if there is one; the loader cannot be read any more."""
        if self._prefetcher is not None:
            self._prefetcher.terminate()

    def __len__(self) -> int:
        """Return the number of combined batches in a pass."""
        length: int = _TorchLoader.__len__(self)
        if self._group_size == 1:
            return length
        return (
            length // self._group_size if self._drop_last_group else -(-length // self._group_size)
        )

    def __iter__(self) -> Iterator[Any]:
        if not compares(self._program_options):
            return self._begin_pass()
        facts = self._describe_pass()
        agree = functools.partial(require_same_pass, self._program_options, facts)
        return AgreedBatches(self._begin_pass(), agree)

    def _begin_pass(self) -> Iterator[Any]:
        if self._prefetcher is not None:
            return iter(self._prefetcher)
        batches = read_torch_loader(self, _TorchLoader.__iter__)
        if self._group_size > 1:
            batches = join_groups(batches, self._group_size, drop_last=self._drop_last_group)
        elif self._num_pieces > 1:
            batches = join_groups(batches, self._num_pieces, drop_last=self._drop_last_group)
        if self._rebatched_size is not None:
            batches = rebatch(batches, self._rebatched_size, drop_last=self._drop_last_group)
        return batches

    def _describe_pass(self) -> dict[str, Any]:
        """Return what must be the same in all processes about the pass that is about to begin."""
        sampler = self.sampler
        facts: dict[str, Any] = {}
        # Even shares may differ by an element, and by a batch; programs for inference do not mind.
        if self._drop_last_group or not isinstance(sampler, PartitionSampler):
            facts["number of batches"] = _length(self)
            forget_length(self)  # or torch would hold the dataset to it
        epoch = getattr(sampler, "epoch", None)
        if epoch is not None and self._prefetcher is not None:
            epoch = self._prefetcher.next_epoch  # the sampler that counts is in the child
        facts["epoch"] = epoch
        if isinstance(sampler, PartitionSampler):
            facts["number of elements"] = _length(self.dataset)
            facts["random_seed"] = sampler.seed
        facts["combined batch size"] = self._combined_batch_size
        return facts

    def _make_source(self, worker_size: int | None, has_batch_sampler: bool) -> Self:
        """Return the synchronous loader that the child process reads.

        A shallow copy, so that the prefetcher does not keep this loader alive (dropping the loader
        must end the child).
        """
        source = copy.copy(self)
        source._mode = LoaderMode.SYNC
        # The copy makes batches in a process without an accelerator; this one pins them.
        source.pin_memory = False
        combined = self._combined_batch_size
        if self._mode is LoaderMode.ASYNC_REBATCHED and has_batch_sampler:
            # Its batches are the pieces, and are joined as in the other modes.
            _warn_about_worker_size(worker_size)
        elif self._mode is LoaderMode.ASYNC_REBATCHED:
            size = _check_worker_size(worker_size, combined)
            assert combined is not None
            pieces: Any
            if isinstance(self.dataset, IterableDataset):
                # Each worker ends with a remainder, wherever its elements end.
                source._rebatched_size = combined
                pieces = BatchSampler(self.sampler, size, drop_last=False)
            else:
                pieces = PieceSampler(self.sampler, combined, size, self._drop_last_group)
                source._num_pieces = pieces.num_pieces
            # torch guards these attributes against changes; the copy is not in use yet.
            vars(source).update(batch_size=size, drop_last=False, batch_sampler=pieces)
        elif not (self._drop_last_group or has_batch_sampler or combined is None):
            # Every worker of an iterable dataset ends with a remainder: only the last may show.
            source._rebatched_size = combined
        return source

    def _warn_about_data(self) -> None:
        iterable = isinstance(self.dataset, IterableDataset)
        if iterable and self.num_workers > 1 and self.worker_init_fn is None:
            warn_user(
                f"each of the {self.num_workers} workers reads the whole iterable dataset, so "
                "elements repeat; split them in the dataset with torch.utils.data."
                "get_worker_info(), or pass a worker_init_fn that does",
                LoaderWarning,
            )
        if self.batch_size is None:
            return
        elements = _length(self.dataset if iterable else self.sampler)
        if elements is None:
            return
        remainder = elements % self.batch_size
        if self.drop_last and elements < self.batch_size:
            warn_user(
                f"the dataset has {elements} elements, fewer than the combined batch size "
                f"{self.batch_size}, so there is no batch at all; lower batch_size or "
                "options' device_iterations, gradient_accumulation or replication_factor",
                LoaderWarning,
            )
        elif remainder and not self.drop_last:
            warn_user(
                f"{elements} elements are not a multiple of the combined batch size "
                f"{self.batch_size}: the last batch has {remainder}, which a compiled program "
                "rejects; pad the dataset or use drop_last=True",
                LoaderWarning,
            )


# torch promises its own iterator class, whose methods are all private.
class DataLoader(CombinedLoading, torch.utils.data.DataLoader):  # type: ignore[misc]
    """Loads combined batches: `batch_size` elements for every micro-batch of a call.

    Everything else is torch's `DataLoader`, with three other defaults: incomplete batches are
    dropped (a compiled program has one batch size), workers persist, and with
    `options.num_processes > 1` a map-style dataset is divided among the processes.

    Args:
        options: The options of the program that consumes the batches.
        dataset: Map-style or iterable.
        batch_size: Elements in a micro-batch; None switches batching off.
        shuffle: Draw a new order for each pass. In one process it is drawn from torch's global
            generator or the `generator` argument, as in torch. In several processes it depends
            only on `options.random_seed`, which is then required, and on the epoch.
        num_workers: torch's worker processes.
        drop_last: Drop the incomplete last batch, or last group of a batch sampler's batches.
        persistent_workers: Keep workers between passes; None keeps them if there are any.
        auto_distributed_partitioning: Divide the dataset among `options.num_processes`.
        contiguous_blocks: Whether the share of a process is one block of the dataset. Otherwise
            micro-batches are dealt in turn, so that each update of all processes together has those
            that one process with all replicas would have. None: unless gradients are synchronised.
        mode: Load in this process, or ahead of time in a child process.
        async_options: Arguments of `AsyncPrefetcher`; the asynchronous modes use them.
        rebatched_worker_size: Elements that a worker loads at once under `ASYNC_REBATCHED`;
            None loads whole combined batches. With a batch sampler workers load its batches.
        batch_sampler: Yields the indices of each micro-batch; consecutive ones are concatenated
            into a combined batch.
        **kwargs: Other arguments of torch's `DataLoader`.

    Raises:
        BatchSamplerError: `batch_sampler` comes with `batch_size`, `shuffle`, or a partition.
        PartitionError: The dataset cannot be divided among the processes.
        RebatchError: `rebatched_worker_size` does not fit, or is given in the wrong place.
    """


def _times(count: int | None, factor: int) -> int | None:
    return None if count is None else count * factor


def _length(sized: Any) -> int | None:
    # IterableDataset may define __len__ and raise from it.
    try:
        return len(sized) if isinstance(sized, Sized) else None
    except (TypeError, NotImplementedError):
        return None


def _check_batch_size(batch_size: Any) -> None:
    valid = isinstance(batch_size, int) and not isinstance(batch_size, bool) and batch_size > 0
    if batch_size is not None and not valid:
        raise LoaderError(
            f"batch_size must be a positive int, or None for no batching; got {batch_size!r}"
        )


def _check_batch_sampler(batch_size: int | None, shuffle: bool | None, partition: bool) -> None:
    if batch_size != 1 or shuffle:
        raise BatchSamplerError(
            "batch_sampler already decides the size and order of batches; leave out "
            f"batch_size={batch_size!r} and shuffle={shuffle!r}"
        )
    if partition:
        raise BatchSamplerError(
            "a dataset read through a batch_sampler cannot be divided among processes "
            "automatically; let the sampler yield this process' batches and pass "
            "auto_distributed_partitioning=False"
        )


def _warn_about_groups(batch_sampler: Any, group_size: int, drop_last: bool) -> None:
    if group_size == 1:
        return
    fate = "dropped" if drop_last else "concatenated into a smaller last batch"
    length = _length(batch_sampler)
    if length is None:
        reason = "the batch sampler has no length"
    elif length % group_size:
        reason = f"the batch sampler yields {length} batches"
    else:
        return
    warn_user(
        f"{reason}, and {group_size} make a combined batch: those that do not fill one at the "
        f"end are {fate}",
        LoaderWarning,
    )


def _warn_about_worker_size(size: int | None) -> None:
    if size is not None:
        warn_user(
            f"rebatched_worker_size={size!r} has no effect beside a batch_sampler, whose batches "
            "are what a worker loads at once; leave it out",
            LoaderWarning,
        )


def _check_worker_size(size: int | None, combined: int | None) -> int:
    if combined is None:
        raise RebatchError(
            "async_rebatched joins pieces into batches of one known size; it needs a batch_size "
            "or a batch_sampler (or use mode async)"
        )
    if size is None:
        return combined
    if not isinstance(size, int) or not 1 <= size <= combined:
        raise RebatchError(
            f"rebatched_worker_size {size!r} is outside 1..{combined}, the combined batch size"
        )
    return size


def _check_async_options(async_options: Mapping[str, Any] | None) -> dict[str, Any]:
    if async_options and "rebatched_size" in async_options:
        raise RebatchError(
            "rebatched_size follows from the combined batch size; remove it from async_options "
            "(rebatched_worker_size sets how much a worker loads at once)"
        )
    return dict(async_options or {})
