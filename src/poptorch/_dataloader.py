"""PopTorch's loaders, on Torchkiln's."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, Sampler

from poptorch._errors import Error, WorkerStartError, in_original_words, translated
from poptorch._option_store import require
from poptorch.enums import DataLoaderMode, SharingStrategy
from poptorch.options import Options
from torchkiln import data
from torchkiln.core import WorkerError
from torchkiln.data import (
    CombinedLoading,
    EmptyDatasetError,
    LoaderMode,
    PartitionError,
    RebatchError,
    StartMethod,
    TerminatedError,
)

_MODES = {
    DataLoaderMode.Sync: LoaderMode.SYNC,
    DataLoaderMode.Async: LoaderMode.ASYNC,
    DataLoaderMode.AsyncRebatched: LoaderMode.ASYNC_REBATCHED,
}
# The original's default is ForkServer, which needs a main guard; AUTO works from notebooks too.
_START_METHODS = {
    SharingStrategy.SharedMemory: StartMethod.AUTO,
    SharingStrategy.FileSystem: StartMethod.AUTO,
    SharingStrategy.Fork: StartMethod.FORK,
    SharingStrategy.ForkServer: StartMethod.AUTO,
}


class DataLoader(TorchDataLoader, CombinedLoading):
    """torch's loader with batches for all micro-batches of a call.

    Args:
        options: Of the model that consumes the batches; frozen by this.
        dataset: Map-style or iterable.
        batch_size: Elements in a micro-batch; None switches batching off.
        shuffle: Draw a new order for each pass; None means False.
        num_workers: torch's worker processes.
        drop_last: Drop the incomplete last batch, which a compiled model would reject.
        persistent_workers: Keep workers between passes; None keeps them if there are any.
        auto_distributed_partitioning: Divide the dataset among `options.Distributed` processes:
            micro-batches are dealt in turn, so that each update is that of one process with all
            replicas; without `drop_last` each process gets a block.
        mode: Load here, or ahead of time in another process.
        async_options: Arguments of `AsynchronousDataAccessor`.
        rebatched_worker_size: Elements that a worker loads at once under `AsyncRebatched`.
        batch_sampler: Yields the indices of each micro-batch.
        **kwargs: Other arguments of torch's `DataLoader`.
    """

    def __init__(
        self,
        options: Options,
        dataset: Dataset[Any],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        num_workers: int = 0,
        drop_last: bool = True,
        persistent_workers: bool | None = None,
        auto_distributed_partitioning: bool = True,
        mode: DataLoaderMode = DataLoaderMode.Sync,
        async_options: dict[str, Any] | None = None,
        rebatched_worker_size: int | None = None,
        batch_sampler: Sampler[list[int]] | None = None,
        **kwargs: Any,
    ) -> None:
        require(isinstance(options, Options), "Unexpected options", options, "poptorch.Options")
        require(isinstance(mode, DataLoaderMode), "Unexpected mode", mode, DataLoaderMode)
        options.freeze()
        self._poptorch_options = options
        settings = options._to_torchkiln()
        if not drop_last:
            # The original's division, whose shares may differ: what is read is for validation.
            copy, copies = settings.pipeline_id, settings.num_pipelines
            settings = settings.replace(
                sync_gradients=False, pipeline=None, process_id=copy, num_processes=copies
            )
        self._has_batch_sampler = batch_sampler is not None
        with _translated():
            CombinedLoading.__init__(
                self,
                settings,
                dataset,
                batch_size,
                shuffle=shuffle,
                num_workers=num_workers,
                drop_last=drop_last,
                persistent_workers=persistent_workers,
                auto_distributed_partitioning=auto_distributed_partitioning,
                mode=_MODES[mode],
                async_options=_accessor_settings(async_options),
                rebatched_worker_size=rebatched_worker_size,
                batch_sampler=batch_sampler,
                **kwargs,
            )

    @property
    def options(self) -> Options:  # type: ignore[override]
        """The options that the loader was made with."""
        return self._poptorch_options

    @property
    def combinedBatchSize(self) -> int | None:
        """Elements in one batch: those of all micro-batches of a call."""
        return self.combined_batch_size

    def __len__(self) -> int:
        """Batches in a pass; with a batch sampler, by the original's rule, its own length."""
        if self._has_batch_sampler:
            return TorchDataLoader.__len__(self)
        return CombinedLoading.__len__(self)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        with _translated():
            batches = CombinedLoading.__iter__(self)
        return _Translating(batches)


class AsynchronousDataAccessor:
    """Loads batches ahead of time in another process, which is started now and loads the first.

    Args:
        dataset: Anything iterable, or a `DataLoader` in mode `Sync`.
        buffer_size: Batches kept ready.
        miss_sleep_time_in_ms: Accepted; waiting does not poll.
        load_indefinitely: Begin the next pass as soon as one is loaded.
        early_preload: Fill the buffer before the first pass is asked for, which happens anyway.
        sharing_strategy: How the process is started.
        rebatched_size: Cut and join batches to this size.
    """

    def __init__(
        self,
        dataset: Any,
        buffer_size: int = 3,
        miss_sleep_time_in_ms: float = 0.1,
        load_indefinitely: bool = True,
        early_preload: bool = False,
        sharing_strategy: SharingStrategy = SharingStrategy.ForkServer,
        rebatched_size: int | None = None,
    ) -> None:
        if isinstance(dataset, CombinedLoading):
            _check_loader(dataset, rebatched_size)
        require(
            rebatched_size is None or rebatched_size > 1,
            "Unexpected rebatched_size",
            rebatched_size,
            "more than 1",
        )
        settings: Any = _accessor_settings(
            {
                "buffer_size": buffer_size,
                "miss_sleep_time_in_ms": miss_sleep_time_in_ms,
                "load_indefinitely": load_indefinitely,
                "early_preload": early_preload,
                "sharing_strategy": sharing_strategy,
            }
        )
        with _translated(), _starting():
            self._prefetcher = data.AsyncPrefetcher(
                dataset, rebatched_size=rebatched_size, checks_source=True, **settings
            )

    def __iter__(self) -> Iterator[Any]:
        with _translated():
            batches = iter(self._prefetcher)
        return _Translating(batches)

    def __len__(self) -> int:
        return len(self._prefetcher)

    def terminate(self) -> None:
        """Stop the process; the accessor cannot be read any more."""
        self._prefetcher.terminate()


class _Translating:
    """An iterator that raises what PopTorch programs expect."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        with _translated():
            return next(self._batches)


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    with translated():
        try:
            yield
        except (PartitionError, RebatchError, EmptyDatasetError, TerminatedError) as error:
            raise AssertionError(in_original_words(error)) from error


@contextlib.contextmanager
def _starting() -> Iterator[None]:
    try:
        yield
    except (WorkerError, EmptyDatasetError) as error:
        raise WorkerStartError(
            f"The accessor's worker thread failed to start: {in_original_words(error)}"
        ) from error


def _check_loader(loader: CombinedLoading, rebatched_size: int | None) -> None:
    if loader.mode is not LoaderMode.SYNC:
        raise Error(
            f"The DataLoader already loads asynchronously (mode {loader.mode.name}); pass one in "
            "DataLoaderMode.Sync, or use it as it is"
        )
    combined = loader.combined_batch_size
    require(
        loader.drop_last or combined is None or combined <= 1 or rebatched_size is not None,
        "A DataLoader with drop_last=False needs rebatched_size",
        rebatched_size,
        "the size of every batch but the last",
    )


def _accessor_settings(settings: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return arguments of the accessor in Torchkiln's words."""
    if settings is None:
        return None
    settings = dict(settings)
    # Torchkiln's parent is woken by the child; there is no polling interval to set.
    settings.pop("miss_sleep_time_in_ms", None)
    strategy = settings.pop("sharing_strategy", None)
    if strategy is not None:
        require(
            isinstance(strategy, SharingStrategy), "Unexpected strategy", strategy, SharingStrategy
        )
        settings["start_method"] = _START_METHODS[strategy]
    return settings
