"""What `torchkiln plan` found out, as a value."""

from __future__ import annotations

from dataclasses import dataclass

from torchkiln.commands._plan_sizes import Sizes
from torchkiln.packing import PackPlan


@dataclass(frozen=True, slots=True)
class PlanReport:
    """What the command found out.

    Args:
        title: What was planned.
        sizes: Sizes of the graphs, by axis.
        plans: A plan by each algorithm, with the same slots.
        seconds: How long each took.
        chosen: Name of the algorithm that the picture shows.
        padded: Share of slots used if every graph is padded to the largest, by axis.
        curve: Batch sizes, in slots of the first axis, and the share used on each axis.
    """

    title: str
    sizes: Sizes
    plans: dict[str, PackPlan]
    seconds: dict[str, float]
    chosen: str
    padded: dict[str, float]
    curve: list[tuple[int, dict[str, float]]]

    @property
    def plan(self) -> PackPlan:
        return self.plans[self.chosen]
