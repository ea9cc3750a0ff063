"""Which part of a model each stage of a pipeline runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stages:
    """The stages of a pipeline in order, each with the names of its blocks.

    A block begins where the module of that name is called, or where forward calls
    `torchkiln.begin_block` with that name. What runs before the first block belongs to stage 0.
    """

    blocks: tuple[tuple[str, ...], ...]

    @property
    def num_stages(self) -> int:
        """How many there are."""
        return len(self.blocks)

    def stage_of(self, block: str) -> int | None:
        """Return the stage that a block belongs to; None if no stage names it."""
        for stage, names in enumerate(self.blocks):
            if block in names:
                return stage
        return None
