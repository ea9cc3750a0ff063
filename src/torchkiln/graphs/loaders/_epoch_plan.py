"""Which graphs share a batch in an epoch: packs of as many as fit, or of a fixed number."""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, final, overload

import numpy as np

from torchkiln.core import BatchTooLarge, warn_user
from torchkiln.graphs.store._axes import Counts
from torchkiln.packing import PackPlan, pack

Sizes = Mapping[str, Counts]


class Strategy(enum.Enum):
    """How graphs are divided among batches."""

    PACKED = "packed"  # as many as fit
    PADDED = "padded"  # always the same number


class Oversize(enum.Enum):
    """What happens to a graph that is larger than a batch."""

    ERROR = "error"
    SKIP = "skip"
    TRIM = "trim"


class WorkItem(NamedTuple):
    """Some consecutive batches to be made: of each, the graphs of its packs."""

    epoch: int
    batches: list[list[Counts]]


@final
class WorkItems(Sequence[WorkItem]):
    """The batches of an epoch, in groups that are made together.

    Args:
        epoch: Which one.
        plan: Its packs.
        num_packs: Packs in a batch.
        group_size: Batches in a group; the last one may have fewer.
        groups: Which of them, by number; None is all.
    """

    def __init__(
        self,
        epoch: int,
        plan: PackPlan,
        num_packs: int,
        group_size: int,
        groups: range | None = None,
    ) -> None:
        self._epoch = epoch
        self._plan = plan
        self._num_packs = num_packs
        self._group_size = group_size
        self._num_batches = len(plan) // num_packs
        self._groups = range(-(-self._num_batches // group_size)) if groups is None else groups

    def __len__(self) -> int:
        return len(self._groups)

    @overload
    def __getitem__(self, index: int) -> WorkItem: ...
    @overload
    def __getitem__(self, index: slice) -> WorkItems: ...
    def __getitem__(self, index: Any) -> Any:
        """Return one group, or some of them."""
        chosen = self._groups[index]
        if isinstance(chosen, range):
            return WorkItems(self._epoch, self._plan, self._num_packs, self._group_size, chosen)
        first = chosen * self._group_size
        return WorkItem(
            self._epoch,
            [
                [self._plan[batch * self._num_packs + pack] for pack in range(self._num_packs)]
                for batch in range(first, min(first + self._group_size, self._num_batches))
            ],
        )


@final
class EpochPlanner:
    """Plans every epoch anew, for one of several processes.

    The plan is a function of the arguments and the epoch; processes that share a dataset get
    equally many packs, the last ones empty where there are not enough.

    Args:
        sizes: Nodes and edges of every graph, by axis.
        slots: Size of a batch on every axis and its number of 'graphs', filler included.
        strategy: See `Strategy`.
        batch_size: Graphs in a padded batch.
        seed: Shuffles; None keeps the order of the dataset.
        oversize: See `Oversize`.
        algorithm: Of `torchkiln.packing.pack`.
        rank: This process.
        world: How many there are.
        num_packs: Packs in a combined batch; the number of packs is a multiple of it.

    Raises:
        BatchTooLarge: A graph does not fit, and `oversize` is ERROR.
    """

    def __init__(
        self,
        sizes: Sizes,
        slots: Mapping[str, int],
        *,
        strategy: Strategy,
        batch_size: int | None,
        seed: int | None,
        oversize: Oversize,
        algorithm: str,
        rank: int,
        world: int,
        num_packs: int,
    ) -> None:
        self._sizes = dict(sizes)
        self._slots = dict(slots)
        self._strategy = strategy
        self._batch_size = batch_size
        self._seed = seed
        self._oversize = oversize
        self._algorithm = algorithm
        self._rank, self._world = rank, world
        self._num_packs = num_packs
        self._chosen: Counts | None = None
        self._latest: tuple[int, PackPlan] | None = None
        if oversize is Oversize.SKIP:
            self._skip()

    @property
    def oversize(self) -> Oversize:
        return self._oversize

    def items(self, epoch: int, *, group_size: int = 1) -> WorkItems:
        """Return the batches of this process."""
        return WorkItems(epoch, self.plan(epoch), self._num_packs, group_size)

    def num_batches(self, epoch: int) -> int:
        """Return how many they are."""
        return len(self.plan(epoch)) // self._num_packs

    def plan(self, epoch: int) -> PackPlan:
        """Return the packs of this process."""
        if self._latest is None or self._latest[0] != epoch:
            whole = self.whole_plan(epoch)
            mine = whole.for_rank(self._rank, self._world, multiple_of=self._num_packs)
            self._latest = (epoch, mine)
        return self._latest[1]

    def whole_plan(self, epoch: int) -> PackPlan:
        """Return the packs of all processes."""
        sizes = self._sizes
        if self._chosen is not None:
            sizes = {axis: column[self._chosen] for axis, column in sizes.items()}
        if self._strategy is Strategy.PACKED:
            oversize = "trim" if self._oversize is Oversize.TRIM else "error"
            plan = pack(
                sizes,
                self._slots,
                algorithm=self._algorithm,  # type: ignore[arg-type]
                seed=self._seed,
                epoch=epoch,
                oversize=oversize,  # type: ignore[arg-type]
            )
        else:
            plan = self._padded(sizes, epoch)
        return plan if self._chosen is None else self._among_all(plan)

    def identity(self) -> dict[str, Any]:
        """Return what the order of graphs depends on, in plain types."""
        digest = hashlib.sha256()
        for axis, column in self._sizes.items():
            digest.update(axis.encode())
            digest.update(np.ascontiguousarray(column).tobytes())
        return {
            "sizes": digest.hexdigest()[:16],
            "slots": dict(self._slots),
            "strategy": self._strategy.value,
            "batch_size": self._batch_size,
            "seed": self._seed,
            "oversize": self._oversize.value,
            "algorithm": self._algorithm,
            "num_processes": self._world,
            "packs_per_batch": self._num_packs,
        }

    def _skip(self) -> None:
        """Leave out what does not fit, once for all epochs."""
        too_large = np.zeros(len(next(iter(self._sizes.values()))), dtype=bool)
        for axis, column in self._sizes.items():
            too_large |= column > max(self._slots[axis] - 1, 0)
        if not too_large.any():
            return
        self._chosen = np.flatnonzero(~too_large)
        first = int(np.flatnonzero(too_large)[0])
        sizes = " and ".join(f"{column[first]} {axis}" for axis, column in self._sizes.items())
        warn_user(
            f"{int(too_large.sum()):,} of {len(too_large):,} graphs are larger than a batch of "
            f"{self._slots} and are skipped; the first is graph {first} with {sizes}"
        )
        if not len(self._chosen):
            raise BatchTooLarge(f"no graph fits a batch of {self._slots}; raise the sizes")

    def _among_all(self, plan: PackPlan) -> PackPlan:
        assert self._chosen is not None
        number = len(next(iter(self._sizes.values())))
        return PackPlan(
            self._chosen[plan.indices],
            plan.offsets,
            plan.slots,
            plan.used,
            skipped=np.setdiff1d(np.arange(number), self._chosen),
            algorithm=plan.algorithm,
        )

    def _padded(self, sizes: Sizes, epoch: int) -> PackPlan:
        """Divide graphs into packs of `batch_size`, whatever their sizes."""
        assert self._batch_size is not None
        number = len(next(iter(sizes.values())))
        order = np.arange(number)
        if self._seed is not None:
            order = np.random.default_rng([self._seed, epoch]).permutation(order)
        offsets = np.append(np.arange(0, number, self._batch_size), number)
        used = {}
        too_large = np.zeros(number, dtype=bool)
        for axis, column in sizes.items():
            room = max(self._slots[axis] - 1, 0)
            too_large |= column > room
            if self._oversize is Oversize.TRIM:
                column = np.minimum(column, room)
            used[axis] = np.add.reduceat(column[order], offsets[:-1])
            over = np.flatnonzero(used[axis] > room)
            if len(over):
                raise BatchTooLarge(
                    f"{self._batch_size} graphs can have {used[axis][over[0]]} {axis}, but a batch "
                    f"holds {self._slots[axis]}, of which one stays filler; lower batch_size, pass "
                    "spec='auto', or use strategy='packed'"
                )
        oversize = np.flatnonzero(too_large)
        return PackPlan(order, offsets, self._slots, used, oversize=oversize, algorithm="padded")


def padded_slots(sizes: Sizes, batch_size: int) -> dict[str, int]:
    """Return slots into which any `batch_size` graphs fit, with one of each axis left."""
    slots = {axis: int(column.max()) * batch_size + 1 for axis, column in sizes.items()}
    return {**slots, "graphs": batch_size + 1}
