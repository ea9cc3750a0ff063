"""Memory over the course of one entry point: what is alive at the peak, and what it is for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchkiln.runtime.compile._plan import Plan, PlannedBlock, PlannedCall
from torchkiln.runtime.passes._origins import Origin, Phase, latest


@dataclass(frozen=True, slots=True)
class Timeline:
    """The plan of an entry, with the origins of the nodes that it names by number."""

    plan: Plan
    origins: Sequence[Origin]

    def origin(self, entry: PlannedCall | PlannedBlock) -> Origin:
        """Return who needs a call or a block: of the latest phase, the last operation."""
        return latest(self.origins[number] for number in sorted(entry.nodes, reverse=True))

    @property
    def peak_call(self) -> int | None:
        """Index of the call at which most memory is there; None if there are no calls."""
        return self.plan.peak_call()

    @property
    def peak_bytes(self) -> int:
        """What is there then, with what the call needs for itself."""
        call = self.peak_call
        if call is None:
            return 0
        return self.plan.live_bytes()[call] + self.plan.calls[call].scratch_bytes

    @property
    def peak(self) -> list[PlannedBlock]:
        """The blocks that are there then."""
        call = self.peak_call
        return [b for b in self.plan.blocks if call is not None and b.born <= call <= b.last]

    @property
    def peak_origin(self) -> Origin:
        """Who is running then."""
        call = self.peak_call
        return Origin() if call is None else self.origin(self.plan.calls[call])

    def turn(self) -> int | None:
        """Return the index of the call with which backward begins; None if there is none.

        Generated kernels of forward may prepare things for backward; operators that are called as
        they are belong to one or the other.
        """
        for index, call in enumerate(self.plan.calls):
            if not call.is_generated and self.origin(call).phase is Phase.BACKWARD:
                return index
        return None

    def is_saved(self, block: PlannedBlock, turn: int | None) -> bool:
        """Whether it was made before forward ended, and is read afterwards.

        By the time and not by the origin: a kernel of forward may prepare something for backward.
        """
        return turn is not None and block.born < turn <= block.last_use

    def is_gradient(self, block: PlannedBlock) -> bool:
        """Whether backward made it and the update (or the sum of gradients) reads it."""
        last = self.origin(self.plan.calls[block.last_use])
        return self.origin(block).phase is Phase.BACKWARD and last.phase is Phase.UPDATE
