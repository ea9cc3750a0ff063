"""Which graphs share a batch in an epoch: packs of as many as fit, or of a fixed number."""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, final, overload

import numpy as np

from torchkiln.core import BatchTooLarge, Options
from torchkiln.graphs.loaders._dealing import Dealing
from torchkiln.graphs.store._axes import Counts
from torchkiln.packing import PackPlan
from torchkiln.packing._oversize import warn_skipped
from torchkiln.packing._pack import plan_packs
from torchkiln.packing._padded import plan_padded
from torchkiln.packing._sizes import SizeTable

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
        options: Of the program that consumes the batches: how many packs a combined batch has, and
            which of them are this process's.

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
        options: Options,
    ) -> None:
        self._digest = _digest(sizes)
        self._table = SizeTable.read(sizes)
        self._slots = dict(slots)
        self._strategy = strategy
        self._batch_size = batch_size
        self._seed = seed
        self._oversize = oversize
        self._algorithm = algorithm
        self._options = options
        self._num_packs = options.combined_factor
        # What does not fit is said now, and once: not when training begins, nor in every epoch.
        whole = self.whole_plan(0)
        warn_skipped(whole, self._table)
        if not whole.num_graphs:
            raise BatchTooLarge(f"no graph fits a batch of {self._slots}; raise the sizes")
        self._latest = (0, self._share_of(whole))

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
        if self._latest[0] != epoch:
            self._latest = (epoch, self._share_of(self.whole_plan(epoch)))
        return self._latest[1]

    def whole_plan(self, epoch: int) -> PackPlan:
        """Return the packs of all processes."""
        order: dict[str, Any] = {"seed": self._seed, "epoch": epoch}
        order["oversize"] = self._oversize.value
        if self._strategy is Strategy.PACKED:
            return plan_packs(self._table, self._slots, algorithm=self._algorithm, **order)
        assert self._batch_size is not None
        return plan_padded(self._table, self._slots, batch_size=self._batch_size, **order)

    def _share_of(self, whole: PackPlan) -> PackPlan:
        options = self._options
        return whole.for_rank(
            options.pipeline_id,
            options.num_pipelines,
            multiple_of=self._num_packs,
            replicas=Dealing(options).inputs if options.synchronizes else 1,
        )

    def identity(self) -> dict[str, Any]:
        """Return what the packs of all processes depend on, in plain types."""
        return {
            "sizes": self._digest,
            "slots": dict(self._slots),
            "strategy": self._strategy.value,
            "batch_size": self._batch_size,
            "seed": self._seed,
            "oversize": self._oversize.value,
            "algorithm": self._algorithm,
        }


def padded_slots(sizes: Sizes, batch_size: int) -> dict[str, int]:
    """Return slots into which any `batch_size` graphs fit, with one of each axis left."""
    slots = {axis: int(column.max()) * batch_size + 1 for axis, column in sizes.items()}
    return {**slots, "graphs": batch_size + 1}


def _digest(sizes: Sizes) -> str:
    digest = hashlib.sha256()
    for axis, column in sizes.items():
        digest.update(axis.encode())
        digest.update(np.ascontiguousarray(column).tobytes())
    return digest.hexdigest()[:16]
