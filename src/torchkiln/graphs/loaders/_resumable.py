"""`ResumableLoader`: batches made from a plan, in an order that can be taken up again anywhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torchkiln.core import Options, to_choice
from torchkiln.data import AsyncPrefetcher, LoaderError, LoaderMode
from torchkiln.graphs._spec import to_count
from torchkiln.graphs.loaders._pass_reader import Make, PassReader, Plan
from torchkiln.graphs.loaders._position import Bookmark


class ResumableLoader:
    """Iterates over `make(item)` for the items of `plan(epoch)`; each new iterator is an epoch.

    Subclasses only add a constructor.

    Args:
        plan: See `PassReader`.
        make: See `PassReader`.
        identity: See `Bookmark`.
        options: See `Bookmark`.
        num_workers: torch's worker processes; they persist from epoch to epoch.
        mode: `sync`, or `async` to load ahead in a child process.
        async_options: Arguments of `AsyncPrefetcher`.
    """

    def __init__(
        self,
        plan: Plan,
        make: Make,
        *,
        identity: Mapping[str, Any],
        options: Options | None = None,
        num_workers: int = 0,
        mode: LoaderMode | str = LoaderMode.SYNC,
        async_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._mode = to_choice((LoaderMode.SYNC, LoaderMode.ASYNC), mode, "mode", LoaderError)
        if async_options and self._mode is LoaderMode.SYNC:
            raise LoaderError(
                f"async_options {dict(async_options)!r} have no meaning in mode sync; "
                "pass mode='async' or leave them out"
            )
        self._num_workers = to_count("num_workers", num_workers, least=0)
        self._reader = PassReader(
            plan,
            make,
            num_workers=self._num_workers,
            mode=self._mode,
            async_options=async_options,
        )
        self._bookmark = Bookmark(identity, self._reader.num_items, options)

    @property
    def mode(self) -> LoaderMode:
        return self._mode

    @property
    def epoch(self) -> int:
        """The epoch that the next iterator yields."""
        return self._bookmark.next_epoch

    def set_epoch(self, epoch: int) -> None:
        """Make the next iterator begin `epoch`; without it, each iterator takes the next one."""
        self._bookmark.set_epoch(epoch)

    def __len__(self) -> int:
        """Return the number of batches in `epoch`, the same in every process."""
        return self._reader.num_items(self.epoch)

    def __iter__(self) -> Iterator[Any]:
        return self._bookmark.follow(self._reader.read)

    def state_dict(self) -> dict[str, Any]:
        """Return where the loader is, in plain JSON types; the same in every process.

        What counts is the batches that were handed out, not those that workers made ahead. Another
        number of processes can go on from there, if an update has as many mini-batches in all.
        """
        return self._bookmark.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iterator begin with the batch that followed when `state` was taken.

        Raises:
            LoaderError: The state comes from a loader with another order of batches.
        """
        self._bookmark.load_state_dict(state)

    def terminate(self) -> None:
        """End all processes of the loader; a new iterator starts them again."""
        self._reader.terminate()

    @property
    def _prefetcher(self) -> AsyncPrefetcher | None:
        """What another `AsyncPrefetcher` looks for, to refuse a loader that loads ahead itself."""
        return self._reader.prefetcher
