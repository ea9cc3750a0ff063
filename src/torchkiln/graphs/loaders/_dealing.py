"""How mini-batches of an epoch are dealt to processes, and which runs see the same ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from torchkiln.core import Options
from torchkiln.data import LoaderError

# Older states counted mini-batches by process and call instead, under either of these names.
_OLD_COUNTS = ("packs_per_batch", "combined_factor")
_PER_UPDATE, _PER_CALL, _SEPARATE = "micro_batches_per_update", "updates_per_call", "num_processes"


@final
@dataclass(frozen=True, slots=True)
class Dealing:
    """Which part of every call's mini-batches a process gets.

    Processes that add up their gradients are replicas of one run. So they are dealt what one
    process with all replicas would get: in each step of accumulation `inputs` mini-batches for
    rank 0, the next ones for rank 1, and so on. An update of all of them then sees the mini-batches
    of that update of the one process, whatever the number of processes is. (If replicas share
    inputs in orthogonal groups, others share one than would in the one process; the inputs of an
    update are the same, each as often.)

    Args:
        options: Of the program that consumes the batches.
    """

    options: Options

    @property
    def inputs(self) -> int:
        """Mini-batches that this process consumes side by side: one for each group of replicas."""
        return self.options.replication_factor // self.options.input_group_size

    @property
    def per_update(self) -> int:
        """Mini-batches of a weight update, over all processes that share it."""
        copies = self.options.num_pipelines if self.options.synchronizes else 1
        return copies * self.options.gradient_accumulation * self.inputs

    @property
    def _is_separate(self) -> bool:
        """Whether several processes share the data, but not their updates."""
        return self.options.num_processes > 1 and not self.options.synchronizes

    def identity(self) -> dict[str, Any]:
        """Return what the place of a mini-batch in a run depends on, in plain types."""
        facts = {_PER_UPDATE: self.per_update, _PER_CALL: self.options.device_iterations}
        if self._is_separate:
            facts[_SEPARATE] = self.options.num_processes
        return facts

    @staticmethod
    def rest_of(identity: Mapping[str, Any]) -> dict[str, Any]:
        """Return a loader's identity without what this class adds, or once added."""
        own = (_PER_UPDATE, _PER_CALL, _SEPARATE, *_OLD_COUNTS)
        return {name: value for name, value in identity.items() if name not in own}

    def require_same_updates(self, identity: Mapping[str, Any]) -> None:
        """Refuse a loader's identity, perhaps of an older version, if it dealt otherwise.

        Raises:
            LoaderError: Updates of that loader consist of other mini-batches.
        """
        old = next((name for name in _OLD_COUNTS if name in identity), None)
        if old is None:
            self._compare(
                {name: identity.get(name) for name in (_PER_UPDATE, _PER_CALL, _SEPARATE)}
            )
        else:
            self._compare_old(identity.get(_SEPARATE), identity[old])

    def _compare(self, found: Mapping[str, Any]) -> None:
        options = self.options
        separate = options.num_processes if self._is_separate else None
        if found[_SEPARATE] != separate:
            raise LoaderError(
                f"the state is from {_describe(found[_SEPARATE])}, this loader is of "
                f"{_describe(separate)}: their batches are others; use the same num_processes and "
                "sync_gradients"
            )
        if found[_PER_UPDATE] != self.per_update:
            raise LoaderError(
                f"an update of the run that is continued has {found[_PER_UPDATE]} micro-batches "
                f"over all processes, but here it would have {self.per_update} "
                f"({self._copies} x replication_factor="
                f"{options.replication_factor} x gradient_accumulation="
                f"{options.gradient_accumulation}{self._shared}); {self._remedy(found)}"
            )
        if found[_PER_CALL] != options.device_iterations:
            raise LoaderError(
                f"a call in the run that is continued made {found[_PER_CALL]} updates, but here it "
                f"would make {options.device_iterations}; set device_iterations to "
                f"{found[_PER_CALL]}"
            )

    def _compare_old(self, num_processes: Any, per_process: Any) -> None:
        # They say how many mini-batches a call had, not how many updates these made.
        options = self.options
        mine = options.num_pipelines * options.combined_factor
        try:
            found = num_processes * per_process
        except TypeError:
            found = None
        if found != mine or (self._is_separate and num_processes != options.num_processes):
            raise LoaderError(
                f"a call in the run that is continued took {per_process} micro-batches in each of "
                f"{num_processes} processes, but here it would take {options.combined_factor} in "
                f"each of {options.num_processes}; choose device_iterations, "
                "gradient_accumulation and replication_factor so that it takes as many in all"
            )

    @property
    def _copies(self) -> str:
        options = self.options
        if options.is_divided:
            return f"num_pipelines={options.num_pipelines}"
        return f"num_processes={options.num_processes}"

    @property
    def _shared(self) -> str:
        size = self.options.input_group_size
        return "" if size == 1 else f" / input_group_size={size}"

    def _remedy(self, found: Mapping[str, Any]) -> str:
        """Return which numbers would do."""
        wanted, world = found[_PER_UPDATE], self.options.num_pipelines
        if not isinstance(wanted, int) or wanted < 1:
            return "pass what state_dict() returned, unchanged"
        if self._is_separate:
            world = 1
        if wanted % world == 0:
            product = wanted // world * self.options.input_group_size
            processes = f" with {world} processes" if world > 1 else ""
            return f"set replication_factor x gradient_accumulation to {product}{processes}"
        counts = [str(number) for number in range(1, wanted + 1) if wanted % number == 0]
        return (
            f"{world} processes cannot share {wanted} equally: start {_listed(counts)}, and set "
            f"replication_factor x gradient_accumulation so that the product is {wanted}"
        )


def _describe(separate: Any) -> str:
    if separate is None:
        return "one run"
    return f"{separate} processes that train models of their own"


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
