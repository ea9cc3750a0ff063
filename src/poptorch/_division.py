"""How several processes divide a model: one for each stage of its execution strategy."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Self

from poptorch._context import Run
from poptorch._errors import Error
from poptorch._option_store import OptionStore, require
from poptorch._strategies import ShardedExecution, _StagedExecution
from poptorch.enums import AutoStage
from torchkiln import runtime
from torchkiln.commands._poprun_layout import InstanceLayout


@dataclass(frozen=True, slots=True)
class Division:
    """The stages of a model that several processes run.

    Args:
        strategy: Says which block belongs to which stage.
        num_stages: Processes of each replica.
    """

    strategy: _StagedExecution
    num_stages: int

    @classmethod
    def of(cls, options: OptionStore) -> Self | None:
        """Return how processes divide the model; None: each of them has all of it.

        Raises:
            Error: poprun was told another number than the strategy has stages.
        """
        strategy: Any = options._execution_strategy
        if options.Distributed._num_ranks == 1:
            return None
        layout = InstanceLayout.from_environment(os.environ) or InstanceLayout()
        told = layout.num_ipus_per_replica
        if not isinstance(strategy, _StagedExecution):
            if told > 1:
                raise Error(
                    f"poprun --ipus-per-replica={told} starts {told} processes for each replica, "
                    f"which {type(strategy).__name__} cannot use; take PipelinedExecution or "
                    "ShardedExecution, or --ipus-per-replica=1"
                )
            return None
        num_stages = len(strategy.stages)
        if num_stages > 1 < told != num_stages:
            raise Error(
                f"the execution strategy has {num_stages} stages, but poprun "
                f"--ipus-per-replica={told} starts {told} processes for each replica; say "
                f"--ipus-per-replica={num_stages}"
            )
        num_stages = max(num_stages, told)
        return cls(strategy, num_stages) if num_stages > 1 else None

    @property
    def pipeline(self) -> tuple[tuple[str, ...], ...]:
        """The blocks of each stage, as Torchkiln has them."""
        if self._automatic is None:
            return tuple(tuple(stage.blocks) for stage in self.strategy.stages)
        # Blocks are known when forward has run: each begins the stage of its device.
        return tuple((_name(stage),) for stage in range(self.num_stages))

    @property
    def schedule(self) -> str:
        """The order of micro-batches, as Torchkiln calls it."""
        return "sequential" if isinstance(self.strategy, ShardedExecution) else "pipelined"

    @property
    def _automatic(self) -> AutoStage | None:
        return self.strategy._auto_stage

    def begin(self, run: Run, block: str, ipu: int | None) -> None:
        """Let what forward computes from here on belong to the stage of a block."""
        if self._automatic is None:
            self.strategy.stage(block)  # the original's error for a block that no stage has
            runtime.begin_block(block)
            return
        stage = self._device_of(run, block, ipu)
        if stage >= self.num_stages:
            raise Error(
                f"block {block!r} is on IPU {stage}, but poprun --ipus-per-replica="
                f"{self.num_stages} starts {self.num_stages} processes for each replica; say "
                f"--ipus-per-replica={stage + 1}"
            )
        runtime.begin_block(_name(stage))

    def _device_of(self, run: Run, block: str, ipu: int | None) -> int:
        first = dict(reversed(run.blocks))[block]
        if first is not None:
            return first
        if self._automatic is AutoStage.AutoIncrement:
            return list(dict.fromkeys(name for name, _ in run.blocks)).index(block)
        require(
            False,
            f"Block {block!r} has no ipu_id, which AutoStage.SameAsIpu needs",
            ipu,
            "an ipu_id in Block or BeginBlock, or AutoStage.AutoIncrement",
        )
        return 0


def _name(stage: int) -> str:
    return f"IPU {stage}"
