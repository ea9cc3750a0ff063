"""How blocks would be spread over devices: stages, phases and execution strategies.

One process runs all blocks itself; several may divide them (`_division.py`). The structure is
checked and kept, so that a program which is valid here is valid on the original's hardware, and the
other way round.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Self

from poptorch._option_store import require
from poptorch.enums import AutoStage, Liveness


class Stage:
    """Blocks that run together."""

    def __init__(self, *block_ids: str) -> None:
        for block_id in block_ids:
            require(isinstance(block_id, str), "Unexpected block id", block_id, str)
        self._blocks = list(block_ids)
        self._ipu: int | None = None

    @property
    def blocks(self) -> list[str]:
        """The ids of the blocks."""
        return self._blocks

    def ipu(self, ipu: int) -> Self:
        """Record the device of this stage."""
        require(isinstance(ipu, int), "Unexpected IPU id", ipu, int)
        self._ipu = ipu
        return self

    def __repr__(self) -> str:
        device = "" if self._ipu is None else f".ipu({self._ipu})"
        return f"Stage({', '.join(map(repr, self._blocks))}){device}"


class Phase:
    """Stages that run at the same time."""

    def __init__(self, *arg: Stage | str | list[Stage] | list[str]) -> None:
        entries: tuple[Any, ...] = arg
        if len(arg) == 1 and isinstance(arg[0], list | tuple):
            entries = tuple(arg[0])
        self.stages: list[Stage]
        if entries and all(isinstance(entry, Stage) for entry in entries):
            self.stages = list(entries)
        else:
            require(
                bool(entries) and all(isinstance(entry, str) for entry in entries),
                "Unexpected content of a Phase",
                entries,
                "only Stage objects or only block ids",
            )
            self.stages = [Stage(*entries)]

    def stage(self, idx: int) -> Stage:
        """Return one of the stages."""
        return self.stages[idx]

    def ipus(self, *ipus: int) -> Self:
        """Record the devices of the stages, one each."""
        require(
            len(ipus) == len(self.stages),
            "Unexpected number of IPUs",
            ipus,
            f"one for each of {len(self.stages)} stages",
        )
        for stage, ipu in zip(self.stages, ipus, strict=True):
            stage.ipu(ipu)
        return self

    def __repr__(self) -> str:
        return f"Phase({', '.join(map(repr, self.stages))})"


class _IExecutionStrategy:
    """What every strategy can say about a block."""

    def __init__(self) -> None:
        self._stage_of: dict[str, Stage] = {}

    def stage(self, block_id: str) -> Stage:
        """Return the stage of a block."""
        require(
            block_id in self._stage_of,
            f"Unknown block id {block_id!r} in {type(self).__name__}",
            block_id,
            f"one of {sorted(self._stage_of)}",
        )
        return self._stage_of[block_id]

    def _add(self, stage: Stage) -> None:
        for block_id in stage.blocks:
            require(
                block_id not in self._stage_of,
                f"Block {block_id!r} is in two stages",
                block_id,
                "every block in one stage",
            )
            self._stage_of[block_id] = stage


class _StagedExecution(_IExecutionStrategy):
    def __init__(self, *args: AutoStage | str | Stage | Iterable[str]) -> None:
        super().__init__()
        self._auto_stage: AutoStage | None = AutoStage.SameAsIpu
        if args and isinstance(args[0], AutoStage):
            require(len(args) == 1, "Unexpected arguments after an AutoStage", args[1:], "none")
            self._auto_stage = args[0]
        elif args:
            self._auto_stage = None
            for entry in args:
                self._add(_to_stage(entry))

    @property
    def stages(self) -> list[Stage]:
        """The stages in order; none while they are found automatically."""
        unique = {id(stage): stage for stage in self._stage_of.values()}
        return list(unique.values())

    def __repr__(self) -> str:
        if self._auto_stage is not None:
            return f"{type(self).__name__}(AutoStage.{self._auto_stage.name})"
        return f"{type(self).__name__}({', '.join(map(repr, self.stages))})"


class PipelinedExecution(_StagedExecution):
    """Stages work on successive micro-batches at the same time; the default."""


class ShardedExecution(_StagedExecution):
    """Stages work one after the other."""


class PhasedExecution(_IExecutionStrategy):
    """Phases run one after the other; how they share devices is left open."""

    def __init__(self, *phases: Phase | Stage | list[Stage] | list[str]) -> None:
        super().__init__()
        require(bool(phases), "No phases given", phases, "at least one Phase")
        self._phases = [_to_phase(entry) for entry in phases]
        self._separate_backward_phase = False
        for phase in self._phases:
            for stage in phase.stages:
                self._add(stage)

    def phase(self, phase: int) -> Phase:
        """Return one of the phases."""
        require(
            isinstance(phase, int) and 0 <= phase < len(self._phases),
            "Unexpected phase number",
            phase,
            f"0 to {len(self._phases) - 1}",
        )
        return self._phases[phase]

    def useSeparateBackwardPhase(self, use: bool = True) -> Self:
        """Record the choice."""
        require(isinstance(use, bool), "Unexpected type for use", use, bool)
        self._separate_backward_phase = use
        return self

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self._phases))})"


class SerialPhasedExecution(PhasedExecution):
    """Phases run one after the other on the same devices."""

    _liveness = Liveness.AlwaysLive

    def setTensorsLiveness(self, liveness: Liveness) -> Self:
        """Record how long tensors stay on the device."""
        require(isinstance(liveness, Liveness), "Unexpected liveness", liveness, Liveness)
        self._liveness = liveness
        return self


class ParallelPhasedExecution(PhasedExecution):
    """Phases alternate between two sets of devices."""

    _off_chip_after_forward = False

    def sendTensorsOffChipAfterFwd(self, off_chip: bool = True) -> Self:
        """Record the choice."""
        require(isinstance(off_chip, bool), "Unexpected type for off_chip", off_chip, bool)
        self._off_chip_after_forward = off_chip
        return self


def _to_stage(entry: Any) -> Stage:
    if isinstance(entry, Stage):
        return entry
    if isinstance(entry, str):
        return Stage(entry)
    require(
        isinstance(entry, Iterable), "Unexpected stage", entry, "a Stage, a block id or several"
    )
    return Stage(*entry)


def _to_phase(entry: Any) -> Phase:
    if isinstance(entry, Phase):
        return entry
    if isinstance(entry, Stage | str):
        return Phase(entry)
    require(
        isinstance(entry, list | tuple), "Unexpected phase", entry, "a Phase, a Stage or a list"
    )
    return Phase(*entry)
