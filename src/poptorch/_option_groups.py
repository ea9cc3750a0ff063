"""The groups inside `Options`: Training, Precision, Distributed, TensorLocations, Jit, _Popart."""

from __future__ import annotations

import os
from typing import Any, Self

import torch

from poptorch._logging import logger
from poptorch._option_store import OptionStore, require
from poptorch.enums import HalfFloatCastingBehavior, MeanReductionStrategy, ReductionType
from torchkiln.core._launch import launched_by_slurm


class _PopartOptions:
    """A dictionary for the original's backend: every key is kept, none has an effect here
    except the two that hold the executable cache, and autoRecomputation.
    """

    def __init__(self) -> None:
        self._frozen = False
        self.options: dict[str, Any] = {
            "instrumentWithHardwareCycleCounter": False,
            "rearrangeAnchorsOnHost": False,
        }

    def checkIsFrozen(self) -> None:
        """Raise if a program or loader already uses these options."""
        if self._frozen:
            raise AttributeError("Can't modify frozen Options: change a clone() instead")

    def freeze(self) -> None:
        """Refuse every later change."""
        self._frozen = True

    def set(self, key: str, value: Any) -> Self:
        """Record `value` under `key`."""
        self.checkIsFrozen()
        self.options[key] = value
        return self

    def setEngineOptions(self, engine_options: dict[str, str]) -> Self:
        """Record options of the original's engine."""
        return self.set("engineOptions", engine_options)

    def setPatterns(self, patterns: dict[str, bool], level: int = 2) -> Self:
        """Record rewriting patterns of the original's compiler."""
        require(isinstance(patterns, dict), "Unexpected type for patterns", patterns, dict)
        require(isinstance(level, int), "Unexpected type for level", level, int)
        return self.set("patterns", patterns).set("patterns_level", level)

    def toDict(self) -> dict[str, Any]:
        """Return a copy of everything recorded."""
        return dict(self.options)

    def __repr__(self) -> str:
        entries = ", ".join(f"{key}={value!r}" for key, value in self.options.items())
        return f"PopartOptions({entries})"


class _TrainingOptions(OptionStore):
    """Options of training programs; inference programs need them at their defaults."""

    def __init__(self, popart: _PopartOptions) -> None:
        super().__init__(
            gradient_accumulation=1,
            accumulation_and_replication_reduction_type=ReductionType.Mean,
            meanAccumulationAndReplicationReductionStrategy=MeanReductionStrategy.Post,
        )
        self._popart = popart

    def gradientAccumulation(self, gradient_accumulation: int) -> Self:
        """Accumulate the gradients of this many micro-batches into one weight update."""
        return self.set(gradient_accumulation=gradient_accumulation)

    def accumulationAndReplicationReductionType(self, reduction_type: ReductionType) -> Self:
        """Combine gradients over accumulation and replicas by `Mean` or `Sum`."""
        self.checkIsFrozen()
        if reduction_type not in (ReductionType.Mean, ReductionType.Sum):
            raise ValueError(
                "accumulationAndReplicationReductionType must be ReductionType.Mean or "
                f"ReductionType.Sum, got {reduction_type!r}"
            )
        return self.set(accumulation_and_replication_reduction_type=ReductionType(reduction_type))

    def setMeanAccumulationAndReplicationReductionStrategy(
        self, mean_reduction_strategy: MeanReductionStrategy
    ) -> Self:
        """Record when a mean is divided; the value is the same for each strategy."""
        require(
            isinstance(mean_reduction_strategy, MeanReductionStrategy),
            "Unexpected type for mean_reduction_strategy",
            mean_reduction_strategy,
            MeanReductionStrategy,
        )
        if mean_reduction_strategy is MeanReductionStrategy.PostAndLoss:
            logger.warning("MeanReductionStrategy.PostAndLoss is deprecated; use Running or Post")
        return self.set(meanAccumulationAndReplicationReductionStrategy=mean_reduction_strategy)

    def setAutomaticLossScaling(self, enabled: bool) -> Self:
        """Record automatic loss scaling; gradients are not scaled here."""
        self.checkIsFrozen()
        require(isinstance(enabled, bool), "Unexpected type for enabled", enabled, bool)
        self._popart.set("automaticLossScalingSettings.enabled", enabled)
        return self

    def setConvolutionDithering(self, enabled: bool) -> Self:
        """Record convolution dithering."""
        self.checkIsFrozen()
        require(isinstance(enabled, bool), "Unexpected type for enabled", enabled, bool)
        self._popart.set("convolutionDithering", enabled)
        return self


class _PrecisionOptions(OptionStore):
    """Arithmetic options."""

    def __init__(self, popart: _PopartOptions) -> None:
        super().__init__(floating_point_exceptions=False)
        self._popart = popart

    def enableFloatingPointExceptions(self, enabled: bool) -> Self:
        """Fail a call whose loss or outputs are NaN or infinite."""
        self.checkIsFrozen()
        require(isinstance(enabled, bool), "Unexpected type for enabled", enabled, bool)
        return self.set(floating_point_exceptions=enabled)

    def enableStochasticRounding(self, enabled: bool) -> Self:
        """Record stochastic rounding; torch rounds to nearest."""
        self.checkIsFrozen()
        require(isinstance(enabled, bool), "Unexpected type for enabled", enabled, bool)
        self._popart.set("enableStochasticRounding", enabled)
        return self

    def setPartialsType(self, dtype: torch.dtype) -> Self:
        """Record the dtype of partial sums: `torch.float` or `torch.half`."""
        self.checkIsFrozen()
        names = {torch.float: "float", torch.half: "half"}
        if dtype not in names:
            raise ValueError(f"setPartialsType takes torch.float or torch.half, got {dtype!r}")
        self._popart.set("partialsTypeMatMuls", names[dtype])
        self._popart.set("convolutionOptions", {"partialsType": names[dtype]})
        return self

    def halfFloatCasting(self, half_float_casting: HalfFloatCastingBehavior) -> Self:
        """Do nothing but warn: a layer computes in the dtype of its input."""
        self.checkIsFrozen()
        logger.warning("halfFloatCasting is deprecated and has no effect; remove the call")
        return self

    def runningStatisticsAlwaysFloat(self, value: bool) -> Self:
        """Do nothing but warn: statistics keep the dtype of their buffers."""
        self.checkIsFrozen()
        if not isinstance(value, bool):
            raise ValueError(f"runningStatisticsAlwaysFloat takes True or False, got {value!r}")
        logger.warning(
            "runningStatisticsAlwaysFloat is deprecated and has no effect; remove the call"
        )
        return self


class _DistributedOptions(OptionStore):
    """Which of several processes this one is."""

    def __init__(self) -> None:
        super().__init__(num_distributed_processes=1, distributed_process_id=0, ipuof_configs={})
        self._read_environment()

    def _read_environment(self) -> None:
        """Take the numbers of torchrun, or else of Open MPI, as the original does, or SLURM's."""
        # poprun of the original calls Open MPI, that of Torchkiln calls torchrun.
        if {"WORLD_SIZE", "RANK"} <= os.environ.keys():
            self.setEnvVarNames("WORLD_SIZE", "RANK")
        elif (step := launched_by_slurm(os.environ)) and "OMPI_COMM_WORLD_SIZE" not in os.environ:
            self.configureProcessId(step.rank, step.size)
        else:
            self.setEnvVarNames("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK")

    def disable(self) -> Self:
        """Go back to a single process."""
        return self.configureProcessId(0, 1)

    def configureProcessId(self, process_id: int, num_processes: int) -> Self:
        """Say that this is process `process_id` of `num_processes`."""
        return self.set(
            distributed_process_id=process_id,
            num_distributed_processes=num_processes,
        )

    def setEnvVarNames(self, var_num_processes: str, var_process_id: str) -> Self:
        """Read both numbers from the environment; absent ones mean a single process."""
        return self.configureProcessId(
            _int_from_environment(var_process_id, 0),
            _int_from_environment(var_num_processes, 1),
        )

    @property
    def processId(self) -> int:
        """The rank of this process."""
        return self._values["distributed_process_id"]

    @property
    def numProcesses(self) -> int:
        """The number of processes."""
        return self._values["num_distributed_processes"]

    @property
    def _rank(self) -> int:
        """This process among all, those that divide a replica included."""
        return self.processId

    @property
    def _num_ranks(self) -> int:
        """The number of all processes, those that divide a replica included."""
        return self.numProcesses


class TensorLocationSettings(OptionStore):
    """Where the original would keep one kind of tensor; recorded."""

    def minElementsForOffChip(self, min_elements: int) -> Self:
        """Record a minimal size."""
        require(isinstance(min_elements, int), "Unexpected type", min_elements, int)
        return self.createOrSet(minElementsForOffChip=min_elements)

    def minElementsForReplicatedTensorSharding(self, min_elements: int) -> Self:
        """Record a minimal size."""
        require(isinstance(min_elements, int), "Unexpected type", min_elements, int)
        return self.createOrSet(minElementsForReplicatedTensorSharding=min_elements)

    def useOnChipStorage(self, use: bool | None = True) -> Self:
        """Record on-chip (True) or off-chip (False) storage; None forgets the choice."""
        if use is None:
            self.deleteIfExists("onChip")
            return self
        return self._record_flag("onChip", use)

    def useReplicatedTensorSharding(self, use: bool = True) -> Self:
        """Divide tensors among replicas: optimiser state among processes, others are recorded."""
        return self._record_flag("useReplicatedTensorSharding", use)

    def useIOTilesToLoad(self, use: bool = True) -> Self:
        """Record the use of I/O tiles."""
        return self._record_flag("useIOTilesToLoad", use)

    def useIOTilesToStore(self, use: bool = True) -> Self:
        """Record the use of I/O tiles."""
        return self._record_flag("useIOTilesToStore", use)

    def _record_flag(self, name: str, use: bool) -> Self:
        require(isinstance(use, bool), f"Unexpected type for {name}", use, bool)
        return self.createOrSet(**{name: int(use)})


class _TensorLocationOptions(OptionStore):
    """Where the original would keep tensors; recorded."""

    def __init__(self) -> None:
        super().__init__()

    def numIOTiles(self, num_tiles: int) -> Self:
        """Record a number of I/O tiles: even, 32 to 192."""
        require(
            isinstance(num_tiles, int) and num_tiles % 2 == 0 and 32 <= num_tiles <= 192,
            "numIOTiles must be an even number",
            num_tiles,
            "32, 34, ... 192",
        )
        return self.createOrSet(numIOTiles=num_tiles)

    def setActivationLocation(self, location: TensorLocationSettings) -> Self:
        """Record where activations would be."""
        return self._record("location_activation", location)

    def setWeightLocation(self, location: TensorLocationSettings) -> Self:
        """Record where weights would be."""
        return self._record("location_weight", location)

    def setOptimizerLocation(self, location: TensorLocationSettings) -> Self:
        """Record where optimiser state would be, and whether processes divide it."""
        return self._record("location_optimizer", location)

    def setAccumulatorLocation(self, location: TensorLocationSettings) -> Self:
        """Record where gradient accumulators would be."""
        return self._record("location_accumulator", location)

    def _record(self, name: str, location: TensorLocationSettings) -> Self:
        require(
            isinstance(location, TensorLocationSettings),
            f"Unexpected type for {name}",
            location,
            TensorLocationSettings,
        )
        return self.createOrSet(**{name: location.toDict()})


class _JitOptions(OptionStore):
    """A group that the original has emptied."""

    def __init__(self) -> None:
        super().__init__()

    def traceModel(self, trace_model: bool) -> Self:
        """Do nothing but warn; `True` asks for a tracer that no longer exists."""
        self.checkIsFrozen()
        logger.warning("Jit.traceModel is deprecated; remove the call")
        if trace_model:
            raise ValueError(
                "traceModel(True) asks for torch.jit.trace, which was removed; remove the call"
            )
        return self


def _int_from_environment(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    try:
        return int(text) if text else default
    except ValueError:
        raise ValueError(f"environment variable {name} must be a number, got {text!r}") from None
