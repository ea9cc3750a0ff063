"""Epochs of batches that can be taken up again in the middle, from any loader that allows it."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol, final

import torch
import xxhash
from torch import Tensor
from torch.utils.data import SequentialSampler

from torchkiln.data import AsyncPrefetcher, DataLoader, LoaderError, LoaderMode, flatten

_GENERATOR, _SEED = "generator", "seed"
_END = object()


class Position(NamedTuple):
    """How many batches of an epoch were handed out; a whole one is none of the next."""

    epoch: int
    done: int


class EpochBatches(Protocol):
    """Epochs of batches that can be taken up again in the middle."""

    @property
    def position(self) -> Position: ...

    def num_batches(self, epoch: int) -> int: ...

    def read(self, epoch: int) -> Iterator[Any]:
        """Yield the batches of `epoch`, those that a loaded state counts as done left out."""

    def state_dict(self) -> dict[str, Any]:
        """Return at least `epoch` and `done`, the position, in JSON types."""

    def tensors(self) -> dict[str, Tensor]:
        """Return what else belongs to the state."""

    def load_state_dict(self, state: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None: ...


class ResumableLoader(Protocol):
    """A loader that knows by itself where it is, such as `FixedSizeLoader`."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Any]: ...

    def set_epoch(self, epoch: int) -> None: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


@final
class ResumableBatches:
    """What a loader makes that can be put anywhere in an epoch at once."""

    def __init__(self, loader: ResumableLoader) -> None:
        self._loader = loader
        loader.set_epoch(0)
        self._lengths: dict[int, int] = {}

    @property
    def position(self) -> Position:
        state = self._loader.state_dict()
        return Position(state["epoch"], state["done"])

    def num_batches(self, epoch: int) -> int:
        if hasattr(self._loader, "num_batches"):
            return int(self._loader.num_batches(epoch))
        return self._lengths[epoch]

    def read(self, epoch: int) -> Iterator[Any]:
        state = self._loader.state_dict()
        if state["epoch"] == epoch:
            self._loader.load_state_dict(state)
        else:
            self._loader.set_epoch(epoch)
        if not hasattr(self._loader, "num_batches"):
            self._lengths[epoch] = len(self._loader)
        return iter(self._loader)

    def state_dict(self) -> dict[str, Any]:
        return self._loader.state_dict()

    def tensors(self) -> dict[str, Tensor]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        self._loader.load_state_dict(state)


@final
class ReplayedBatches:
    """What an ordinary loader makes; to resume, the batches that are done are read once more.

    While the loader is at work, torch's generator has a state of its own, which follows from one
    number that is drawn at the beginning of the epoch: so what the loader draws is repeated
    exactly, whatever training draws in between. A generator that the loader has is saved, too. If
    the batches that are read once more are others than they were, that is an error.

    Args:
        loader: Anything that begins anew for each epoch and has a length.

    Raises:
        LoaderError: It can be read only once, has no length, or its order cannot be repeated.
    """

    def __init__(self, loader: Iterable[Any]) -> None:
        require_repeatable(loader)
        self._loader = loader
        self._position = Position(0, 0)
        self._start: dict[str, Tensor] = {}  # what the epoch began with
        self._batches: Iterator[Any] = iter(())
        self._last: Any = None  # batch that was handed out
        # Digest of the last one before a resume; None: other processes read it.
        self._expected: str | None = None
        self._numbers = torch.Generator().get_state()  # of the loader
        self._has_workers = False

    @property
    def position(self) -> Position:
        epoch, done = self._position
        return Position(epoch + 1, 0) if done >= self.num_batches(epoch) else self._position

    def num_batches(self, epoch: int) -> int:
        return len(self._loader)  # type: ignore[arg-type]  # required above

    def read(self, epoch: int) -> Iterator[Any]:
        done = self._position.done if self._position.epoch == epoch else 0
        self._begin(epoch, is_new=done == 0)
        if done:
            self._skip(done)
        while (batch := self._next()) is not _END:
            done += 1
            self._position, self._last = Position(epoch, done), batch
            yield batch
        self._position, self._last, self._start = Position(epoch + 1, 0), None, {}

    def _begin(self, epoch: int, *, is_new: bool) -> None:
        if _GENERATOR in self._start:
            _own_generator(self._loader).set_state(self._start[_GENERATOR])
        if is_new:
            self._start = {_SEED: torch.randint(2**62, (1,)), **self._generator_state()}
        self._start_workers()
        self._numbers = torch.Generator().manual_seed(int(self._start[_SEED])).get_state()
        _set_epoch(self._loader, epoch)
        with self._own_numbers():
            self._batches = iter(self._loader)

    def _start_workers(self) -> None:
        """Let workers that stay begin: afterwards all epochs draw the same numbers, also the first.

        Torch draws one more when it starts them.
        """
        if not self._has_workers and getattr(self._loader, "persistent_workers", False):
            before = self._generator_state()
            with self._own_numbers():
                iter(self._loader)
            if before:
                _own_generator(self._loader).set_state(before[_GENERATOR])
        self._has_workers = True

    def _next(self) -> Any:
        with self._own_numbers():
            return next(self._batches, _END)

    @contextlib.contextmanager
    def _own_numbers(self) -> Iterator[None]:
        """Let torch's generator be the loader's for a moment."""
        of_training = torch.get_rng_state()
        torch.set_rng_state(self._numbers)
        try:
            yield
        finally:
            self._numbers = torch.get_rng_state()
            torch.set_rng_state(of_training)

    def _skip(self, done: int) -> None:
        for _ in range(done):
            self._last = self._next()
        is_other = self._expected is not None and digest_of(self._last) != self._expected
        if self._last is _END or is_other:
            raise LoaderError(
                f"the loader does not repeat its batches: number {done} of this epoch is another "
                "one than before, so the run cannot be resumed exactly; let order and samples "
                "follow from torch's generator, from the loader's generator=, or from "
                "set_epoch(epoch)"
            )

    def state_dict(self) -> dict[str, Any]:
        epoch, done = self.position
        if not done:
            self._exhaust()
        return {"epoch": epoch, "done": done, "last_batch": digest_of(self._last) if done else None}

    def _exhaust(self) -> None:
        """Let an epoch that is done come to its end: samplers may draw numbers there."""
        if self._next() is not _END:
            raise LoaderError(
                f"{type(self._loader).__name__} has more batches than its length, "
                f"{self.num_batches(0)}; correct its __len__"
            )

    def tensors(self) -> dict[str, Tensor]:
        return self._start if self.position.done else self._generator_state()

    def _generator_state(self) -> dict[str, Tensor]:
        own = getattr(self._loader, "generator", None)
        return {_GENERATOR: own.get_state()} if isinstance(own, torch.Generator) else {}

    def load_state_dict(self, state: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        self._position = Position(int(state["epoch"]), int(state["done"]))
        self._expected = state["last_batch"]
        self._start = dict(tensors)


def make_batches(loader: Iterable[Any]) -> EpochBatches:
    """Return the epochs of `loader`.

    Raises:
        LoaderError: It can be read only once, has no length, or its order cannot be repeated.
    """
    if all(hasattr(loader, name) for name in ("set_epoch", "state_dict", "load_state_dict")):
        return ResumableBatches(loader)  # type: ignore[arg-type]
    return ReplayedBatches(loader)


def require_repeatable(loader: Iterable[Any]) -> None:
    """Refuse a loader whose epochs cannot be read again in the same order.

    Raises:
        LoaderError: See the message.
    """
    kind = type(loader).__name__
    if not hasattr(loader, "__iter__") or _has_one_pass(loader):
        raise LoaderError(
            f"{kind} can be read only once; pass something that begins anew for each epoch, such "
            "as a DataLoader or a list of batches"
        )
    try:
        length = len(loader)  # type: ignore[arg-type]
    except TypeError as error:
        raise LoaderError(
            f"{kind} does not know how many batches an epoch has ({error}); give it a __len__"
        ) from error
    if length < 1:
        raise LoaderError(f"{kind} has no batch at all; use more data, or a smaller batch_size")
    if _has_hidden_generator(loader):
        raise LoaderError(
            f"the sampler of {kind} has a generator of its own, which a checkpoint would not hold; "
            "pass the same one to the loader as well: generator=..."
        )
    if _is_drawn_elsewhere(loader):
        raise LoaderError(
            f"{kind} draws the order of an epoch in a child process, where nobody can save it; use "
            'mode="sync", or a sampler with set_epoch(epoch)'
        )


def _has_hidden_generator(loader: Iterable[Any]) -> bool:
    """Tell whether a sampler draws from a generator that the loader does not know."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    inner = (getattr(batch_sampler, "sampler", None), getattr(loader, "sampler", None))
    found = [getattr(sampler, "generator", None) for sampler in (batch_sampler, *inner)]
    known = getattr(loader, "generator", None)
    return any(isinstance(one, torch.Generator) and one is not known for one in found)


def _is_drawn_elsewhere(loader: Iterable[Any]) -> bool:
    if isinstance(loader, AsyncPrefetcher):
        return True
    sampler = getattr(loader, "sampler", None)
    follows_epoch = isinstance(sampler, SequentialSampler) or hasattr(sampler, "set_epoch")
    is_ahead = isinstance(loader, DataLoader) and loader.mode is not LoaderMode.SYNC
    return is_ahead and not follows_epoch


def _has_one_pass(loader: Iterable[Any]) -> bool:
    """Tell whether something is an iterator, which has one pass only; makes none of a loader."""
    return hasattr(loader, "__next__")


def digest_of(batch: Any) -> str:
    """Return a checksum of all numbers of a batch."""
    digest = xxhash.xxh3_128()
    for tensor in flatten(batch)[0]:
        digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        numbers = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)
        digest.update(numbers.numpy().data)
    return digest.hexdigest()


def peek(batches: Iterator[Any]) -> tuple[Any, Iterator[Any]]:
    """Return the first batch, and an iterator that still has it."""
    first = next(batches)
    return first, itertools.chain([first], batches)


def _own_generator(loader: Any) -> torch.Generator:
    own: torch.Generator = loader.generator
    return own


def _set_epoch(loader: Any, epoch: int) -> None:
    source = loader if hasattr(loader, "set_epoch") else getattr(loader, "sampler", None)
    if source is not None and hasattr(source, "set_epoch"):
        source.set_epoch(epoch)
