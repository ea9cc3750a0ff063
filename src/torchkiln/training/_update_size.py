"""`UpdateSize`: the mini-batches that share a weight update, and who computes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self, final

from torchkiln.core import Options

# What an identity says about it; compared here and not name by name.
_ACCUMULATION = ("options.gradient_accumulation", "mode.optimizer.gradient_accumulation")
_REPLICAS = "options.replication_factor"
PARTS = (*_ACCUMULATION, _REPLICAS)


@final
@dataclass(frozen=True, slots=True)
class UpdateSize:
    """Mini-batches of one weight update: a run may go on with another division, not another number.

    Args:
        processes: That train together.
        replicas: Of each process.
        accumulation: Mini-batches of each replica.
    """

    processes: int = 1
    replicas: int = 1
    accumulation: int = 1

    @classmethod
    def of(cls, options: Options) -> Self:
        """Return the size of an update of a program."""
        processes = options.num_pipelines if options.synchronizes else 1
        return cls(processes, options.replication_factor, options.gradient_accumulation)

    @classmethod
    def saved(cls, facts: Mapping[str, Any], identity: Mapping[str, Any]) -> Self:
        """Return what a checkpoint was made with; earlier versions trained in one process.

        Args:
            facts: Of the checkpoint.
            identity: Of its run, by dotted names.
        """
        if "update" in facts:
            return cls(**facts["update"])
        accumulation = next((identity[name] for name in _ACCUMULATION if name in identity), 1)
        return cls(replicas=identity.get(_REPLICAS, 1), accumulation=accumulation)

    @property
    def total(self) -> int:
        """How many mini-batches they are."""
        return self.processes * self.replicas * self.accumulation

    def to_dict(self) -> dict[str, int]:
        return asdict(self)

    def what_would_work(self, total: int) -> str:
        """Say how these processes, or others, make updates of `total` mini-batches."""
        share, rest = divmod(total, self.processes)
        if not rest:
            here = f"with {_count(self.processes, 'process', 'processes')}, replication_factor x "
            return f"{here}gradient_accumulation must be {share}{self._otherwise(total)}"
        numbers = [str(number) for number in range(1, total + 1) if total % number == 0]
        listed = f"{', '.join(numbers[:-1])} or {numbers[-1]}" if len(numbers) > 1 else numbers[0]
        return f"start {listed} process{'es' * (total > 1)}{self._otherwise(total)}"

    def _otherwise(self, total: int) -> str:
        """Name the number of processes that fits the other settings as they are."""
        processes, rest = divmod(total, self.replicas * self.accumulation)
        if rest or processes == self.processes:
            return ""
        count = _count(processes, "process", "processes")
        return f"; with the present settings, {count} would do"

    def __str__(self) -> str:
        return (
            f"{self.total} mini-batches in an update: "
            f"{_count(self.processes, 'process', 'processes')} x "
            f"{_count(self.replicas, 'replica', 'replicas')} x {self.accumulation} accumulated"
        )


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
