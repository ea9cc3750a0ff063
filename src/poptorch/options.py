"""`Options`: the original's setters, and their translation to `torchkiln.Options`."""

from __future__ import annotations

import copy
import os
from typing import Any, Self

import torch

from poptorch import _option_files
from poptorch import _option_values as values_module
from poptorch._errors import translated
from poptorch._logging import logger
from poptorch._option_groups import (
    TensorLocationSettings,
    _DistributedOptions,
    _JitOptions,
    _PopartOptions,
    _PrecisionOptions,
    _TensorLocationOptions,
    _TrainingOptions,
)
from poptorch._option_store import OptionStore, require
from poptorch._strategies import PipelinedExecution, _IExecutionStrategy
from poptorch.enums import CommGroupType, ConnectionType, OutputMode, SyncPattern
from torchkiln import core

_GROUPS = ("Distributed", "Jit", "Precision", "TensorLocations", "Training", "_Popart")
_UNLIMITED_LOG_LINES = 2**64 - 1
_PROFILING_KEYS = ("debug.allowOutOfMemory", "autoReport.all", "autoReport.directory")


class Options(OptionStore):
    """How a model is compiled and run; every setter returns the options, so calls chain.

    Options that only mean something to the original's hardware are checked and recorded: `repr`
    shows them, and `torchkiln doctor` lists them.
    """

    def __init__(self) -> None:
        super().__init__(**values_module.defaults())
        self._Popart = _PopartOptions()
        self._distributed = _DistributedOptions()
        self._jit = _JitOptions()
        self._precision = _PrecisionOptions(self._Popart)
        self._tensor_locations = _TensorLocationOptions()
        self._training = _TrainingOptions(self._Popart)
        self._execution_strategy: _IExecutionStrategy = PipelinedExecution()
        cache = os.environ.get("POPTORCH_CACHE_DIR", "")
        if cache:
            self.enableExecutableCaching(cache)
        defaults = os.environ.get("POPTORCH_DEFAULT_OPTIONS", "")
        if defaults:
            _option_files.apply_json(self, defaults, "POPTORCH_DEFAULT_OPTIONS")

    # groups

    @property
    def Distributed(self) -> _DistributedOptions:
        """Which of several processes this one is."""
        return self._distributed

    @property
    def Jit(self) -> _JitOptions:
        """A group that the original has emptied."""
        return self._jit

    @property
    def Precision(self) -> _PrecisionOptions:
        """Arithmetic options."""
        return self._precision

    @property
    def TensorLocations(self) -> _TensorLocationOptions:
        """Where the original would keep tensors; recorded."""
        return self._tensor_locations

    @property
    def Training(self) -> _TrainingOptions:
        """Options of training programs."""
        return self._training

    # what a call consumes and returns

    def deviceIterations(self, device_iterations: int) -> Self:
        """Run this many iterations (with a weight update each, in training) per call."""
        return self.set(device_iterations=device_iterations)

    def replicationFactor(self, replication_factor: int) -> Self:
        """Train this many data-parallel copies; in one process they are folded into the loop."""
        return self.set(replication_factor=replication_factor)

    def inputReplicaGrouping(self, input_group_size: int, input_group_type: CommGroupType) -> Self:
        """Give the replicas of one group the same input; set `replicationFactor` first."""
        require(
            isinstance(input_group_type, CommGroupType),
            "Unexpected type for input_group_type",
            input_group_type,
            CommGroupType,
        )
        if input_group_type is CommGroupType.All:
            raise ValueError("CommGroupType.All cannot group inputs; use Consecutive or Orthogonal")
        if input_group_type is CommGroupType.NoGrouping:
            input_group_size, input_group_type = 1, CommGroupType.Consecutive
        require(
            isinstance(input_group_size, int),
            "Unexpected type for input_group_size",
            input_group_size,
            int,
        )
        replicas = self.replication_factor
        if not 1 <= input_group_size <= replicas or replicas % input_group_size:
            raise ValueError(
                f"input_group_size {input_group_size} does not divide the replication factor "
                f"{replicas}; call replicationFactor first with a multiple of it"
            )
        return self.set(input_group_size=input_group_size, input_cgt=input_group_type)

    def outputMode(self, output_mode: OutputMode, output_return_period: int | None = None) -> Self:
        """Return the outputs of all, the final or every n-th micro-batches, or their sum."""
        self.checkIsFrozen()
        period = _checked_period(output_mode, output_return_period)
        return self.set(output_mode=int(output_mode), output_return_period=period)

    def defaultOutputMode(self) -> bool:
        """Return whether the output mode is still left to the kind of model."""
        return self.output_mode == OutputMode.Default

    def anchorTensor(
        self,
        short_name: str,
        long_name: str,
        output_mode: OutputMode | None = None,
        output_return_period: int | None = 1,
    ) -> None:
        """Keep the tensor `long_name` after each call, to be read by `getAnchoredTensor`.

        Also allowed on frozen options, as in the original.
        """
        follows_outputs = output_mode is None
        mode, period = OutputMode.All, 1
        if output_mode is not None:
            mode = output_mode
            period = _checked_period(output_mode, output_return_period)
            if mode is not OutputMode.EveryN:
                period = 1
        self.anchored_tensors[short_name] = [long_name, follows_outputs, int(mode), period]

    def randomSeed(self, random_seed: int) -> Self:
        """Seed torch's generator now, and again whenever a program is built from these options."""
        self.checkIsFrozen()
        require(isinstance(random_seed, int), "Unexpected type for random_seed", random_seed, int)
        fits = -(2**63) <= random_seed < 2**64
        require(fits, "Unexpected value for random_seed", random_seed, "a number of 64 bits")
        torch.manual_seed(random_seed)
        return self.createOrSet(random_seed=random_seed)

    # building

    def enableExecutableCaching(self, path: str | os.PathLike[str] | None) -> Self:
        """Keep compiled programs in the directory `path`; None switches that off."""
        self.checkIsFrozen()
        if path is not None:
            self._Popart.set("cachePath", os.fspath(path))
        self._Popart.set("enableEngineCaching", path is not None)
        return self

    def showCompilationProgressBar(self, show: bool = True) -> Self:
        """Draw the "Graph compilation" bar."""
        return self.set(show_compilation_progress_bar=show)

    def setExecutionStrategy(self, strategy: _IExecutionStrategy) -> Self:
        """Say how blocks are spread over devices: processes, if there are several."""
        self.checkIsFrozen()
        require(
            isinstance(strategy, _IExecutionStrategy),
            "Unexpected type for strategy",
            strategy,
            "PipelinedExecution, ShardedExecution, PhasedExecution, ParallelPhasedExecution or "
            "SerialPhasedExecution",
        )
        self._execution_strategy = strategy
        return self

    def relaxOptimizerAttributesChecks(self, relax: bool = True) -> Self:
        """Report unknown optimiser attributes at debug instead of warning level."""
        return self.set(relax_optimizer_attributes_checks=relax)

    def broadcastBuffers(self, broadcast_buffers: bool = True) -> Self:
        """Record the choice; there is one set of buffers, updated once per micro-batch."""
        return self.set(broadcast_buffers=broadcast_buffers)

    def updatableNamedBuffers(self, buffers: list[str]) -> Self:
        """Name the buffers that `copyNamedBuffersToDevice` is about."""
        require(isinstance(buffers, list), "Unexpected type for buffers", buffers, list)
        return self.createOrSet(updatable_named_buffers=list(buffers))

    # recorded for the original's hardware

    def autoRoundNumIPUs(self, auto_round_num_ipus: bool = True) -> Self:
        """Allow a number of devices that is not a power of two."""
        return self.set(auto_round_num_ipus=auto_round_num_ipus)

    def setAvailableMemoryProportion(self, available_memory_proportion: dict[str, float]) -> Self:
        """Record memory proportions: `{"IPU0": 0.5}`."""
        require(
            isinstance(available_memory_proportion, dict),
            "Unexpected type",
            available_memory_proportion,
            dict,
        )
        stored = {}
        for key, value in available_memory_proportion.items():
            require(
                isinstance(key, str) and key.startswith("IPU") and key[3:].isdigit(),
                "Unexpected key of setAvailableMemoryProportion",
                key,
                '"IPU<number>"',
            )
            stored[int(key[3:])] = value
        return self.set(available_memory_proportion=stored)

    def enableSyntheticData(self, enabled: bool) -> Self:
        """Record synthetic data; programs run on the data they are given."""
        require(isinstance(enabled, bool), "Unexpected type for enabled", enabled, bool)
        self._Popart.set("syntheticDataMode", int(enabled))
        return self

    def enableStableNorm(self, enabled: bool) -> Self:
        """Record stable norms; torch's own are computed in a stable way."""
        return self.set(stable_norm=enabled)

    def logCycleCount(self, log_cycle_count: bool) -> Self:
        """Record cycle counting; there is no counter to read."""
        require(isinstance(log_cycle_count, bool), "Unexpected type", log_cycle_count, bool)
        self._Popart.set("instrumentWithHardwareCycleCounter", log_cycle_count)
        return self

    def enableProfiling(self, profile_dir: str | None = None) -> Self:
        """Let programs write a report into a folder of their name; POPLAR_ENGINE_OPTIONS wins."""
        self.checkIsFrozen()
        overridden = os.environ.get("POPLAR_ENGINE_OPTIONS", "")
        for key in _PROFILING_KEYS:
            if key in overridden:
                logger.warning(
                    "POPLAR_ENGINE_OPTIONS also sets %s, and the environment wins over "
                    "enableProfiling",
                    key,
                )
        engine_options = dict(self._Popart.options.get("engineOptions", {}))
        engine_options.update(dict.fromkeys(_PROFILING_KEYS[:2], "true"))
        engine_options["autoReport.directory"] = profile_dir or "."
        self._Popart.setEngineOptions(engine_options)
        return self

    def modelName(self, name: str) -> Self:
        """Name the program, and with it the folder of its report."""
        require(isinstance(name, str), "Unexpected type for name", name, str)
        return self.createOrSet(model_name=name)

    def logDir(self, log_dir: str) -> Self:
        """Record a directory for logs."""
        return self.set(log_dir=log_dir)

    def maxRepeatLogs(self, max_lines: int | None) -> Self:
        """Record a limit of repeated log lines; None means no limit."""
        return self.set(max_repeat_logs=_UNLIMITED_LOG_LINES if max_lines is None else max_lines)

    def useIpuModel(self, use_model: bool) -> Self:
        """Record the use of a simulator."""
        require(isinstance(use_model, bool), "Unexpected type for use_model", use_model, bool)
        return self.createOrSet(use_model=use_model)

    def useIpuId(self, ipu_id: int) -> Self:
        """Record a device number."""
        require(isinstance(ipu_id, int), "Unexpected type for ipu_id", ipu_id, int)
        return self.createOrSet(ipu_id=ipu_id)

    def useOfflineIpuTarget(self, ipu_version: int = 2) -> Self:
        """Compile only: calling a model built with this raises."""
        require(isinstance(ipu_version, int), "Unexpected type for ipu_version", ipu_version, int)
        self.connectionType(ConnectionType.Never)
        return self.createOrSet(ipu_version=ipu_version)

    def connectionType(self, connection_type: ConnectionType) -> Self:
        """Record when a device is attached; `Never` forbids calls."""
        require(
            isinstance(connection_type, ConnectionType),
            "Unexpected type for connection_type",
            connection_type,
            ConnectionType,
        )
        return self.set(connection_type=int(connection_type))

    def syncPattern(self, sync_pattern: SyncPattern) -> Self:
        """Record a synchronisation pattern."""
        require(
            isinstance(sync_pattern, SyncPattern),
            "Unexpected type for sync_pattern",
            sync_pattern,
            SyncPattern,
        )
        return self.set(sync_pattern=int(sync_pattern))

    def disableModuleNamescope(self) -> Self:
        """Record that operators are not named after modules."""
        return self.set(module_namescope_enabled=False)

    def sourceLocationExcludes(self, excludes: list[str]) -> Self:
        """Record source files that the original leaves out of its locations."""
        return self.set(source_location_excludes=list(excludes))

    def appendToLocationExcludes(self, *excludes: str) -> Self:
        """Record more such source files."""
        return self.set(source_location_excludes=[*self.source_location_excludes, *excludes])

    # the object itself

    def clone(self) -> Self:
        """Return an independent copy that may be changed."""
        return copy.deepcopy(self)

    def freeze(self) -> None:
        """Refuse every later change, in the groups too."""
        super().freeze()
        for name in _GROUPS:
            getattr(self, name).freeze()

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        twin = super().__deepcopy__(memo)
        twin._Popart._frozen = False
        return twin

    def __repr__(self) -> str:
        entries = [f"{name}={value!r}" for name, value in self._values.items()]
        entries.append(f"execution_strategy={self._execution_strategy!r}")
        entries += [f"{name}={getattr(self, name)!r}" for name in _GROUPS]
        return f"Options({', '.join(entries)})"

    def toDict(self) -> dict[str, Any]:
        """Return everything as one flat dictionary, for a model of a known kind.

        Raises:
            AssertionError: while the output mode is left to the kind of model.
        """
        if self.defaultOutputMode():
            raise AssertionError(
                "toDict needs a definite output mode; call outputMode, or ask a model's options"
            )
        flat = dict(self._values)
        for name in _GROUPS:
            flat.update(getattr(self, name).toDict())
        return flat

    def from_json(self, string: str) -> Self:
        """Apply a JSON object of setter names, such as `{"Training.gradientAccumulation": 4}`.

        A list is the setter's positional arguments; `"OutputMode.All"` is the enum's member.
        """
        _option_files.apply_json(self, string, "the JSON of options")
        return self

    def loadFromFile(self, filepath: str | os.PathLike[str]) -> Self:
        """Apply a file of setter calls, one a line: `deviceIterations(4)`.

        The lines are executed as Python: load only files that you trust.
        """
        _option_files.apply_file(self, filepath)
        return self

    def _to_torchkiln(self) -> core.Options:
        """Return the same request in Torchkiln's words, validated."""
        with translated():
            return values_module.to_torchkiln(self)


def _checked_period(output_mode: OutputMode, period: Any) -> int:
    require(isinstance(output_mode, OutputMode), "Unexpected output mode", output_mode, OutputMode)
    if output_mode is OutputMode.EveryN:
        require(
            isinstance(period, int) and period > 0,
            "OutputMode.EveryN needs a positive output_return_period",
            period,
            "a positive int",
        )
        return period
    if period is not None and period != 1:
        logger.info("output_return_period %s only counts with OutputMode.EveryN", period)
    return 1 if period is None else period


__all__ = ["Options", "TensorLocationSettings"]
