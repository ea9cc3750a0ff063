"""What a prefetcher and its child process say to each other."""

from __future__ import annotations

from dataclasses import dataclass

# Passes over the data are numbered: *generation* counts the iterators that were asked for, *epoch*
# is what a distributed shuffle depends on. Whatever belongs to an older generation than the one
# asked for last is stale, and both sides drop it without a word.


@dataclass(frozen=True, slots=True)
class Begin:
    """Parent: give me this pass, drop what is older."""

    generation: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Taken:
    """Parent: I have the batch in `slot`, and nobody uses those in `released` any more."""

    slot: int
    released: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NewArena:
    """Child: from now on `slot` is this memory; its descriptor follows."""

    slot: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Ready:
    """Child: here is the next batch of a pass."""

    generation: int
    slot: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Finished:
    """Child: the pass is over."""

    generation: int
    num_batches: int


@dataclass(frozen=True, slots=True)
class Failed:
    """Child: loading raised, and I am leaving."""

    generation: int
    error: str
    traceback: str


ToChild = Begin | Taken
ToParent = NewArena | Ready | Finished | Failed
