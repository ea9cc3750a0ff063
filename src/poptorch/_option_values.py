"""The values that `Options` starts with, and what Torchkiln makes of them."""

from __future__ import annotations

from typing import Any

from poptorch._division import Division
from poptorch._engine_options import REPORT_KEYS, report_directory
from poptorch._option_store import OptionStore
from poptorch._strategies import PipelinedExecution
from poptorch.enums import (
    CommGroupType,
    ConnectionType,
    MeanReductionStrategy,
    OutputMode,
    ReductionType,
    SyncPattern,
)
from torchkiln import core

_OUTPUT_MODES = {
    OutputMode.Final: core.OutputMode.FINAL,
    OutputMode.EveryN: core.OutputMode.EVERY_N,
    OutputMode.All: core.OutputMode.ALL,
    OutputMode.Sum: core.OutputMode.SUM,
    OutputMode.Default: core.OutputMode.DEFAULT,
}
_GROUPINGS = {
    CommGroupType.Consecutive: core.InputGrouping.CONSECUTIVE,
    CommGroupType.Orthogonal: core.InputGrouping.ORTHOGONAL,
}
_REDUCTIONS = {ReductionType.Mean: core.Reduction.MEAN, ReductionType.Sum: core.Reduction.SUM}
# Values that `to_torchkiln` translates; every other one is recorded when it was changed.
_TRANSLATED = {
    "replication_factor",
    "input_group_size",
    "input_cgt",
    "device_iterations",
    "anchored_tensors",
    "output_mode",
    "output_return_period",
    "random_seed",
    "show_compilation_progress_bar",
    # The façade itself acts on these four.
    "model_name",
    "connection_type",
    "relax_optimizer_attributes_checks",
    "updatable_named_buffers",
}
# The one setting of tensor locations that has a meaning here.
_OPTIMIZER_LOCATION, _SHARDING = "location_optimizer", "useReplicatedTensorSharding"
_LOSS_SCALE = "finalLossScale"
_TRANSLATED_POPART = {
    "autoRecomputation",
    "cachePath",
    "enableEngineCaching",
    "syntheticDataMode",
}


def defaults() -> dict[str, Any]:
    """Return fresh default values; enums are plain ints where the original stores ints."""
    return {
        "replication_factor": 1,
        "input_group_size": 1,
        "input_cgt": CommGroupType.Consecutive,
        "broadcast_buffers": True,
        "device_iterations": 1,
        "log_dir": ".",
        "max_repeat_logs": 4,
        "auto_round_num_ipus": False,
        "anchored_tensors": {},
        "output_mode": int(OutputMode.Default),
        "output_return_period": 1,
        "connection_type": int(ConnectionType.Always),
        "sync_pattern": int(SyncPattern.Full),
        "available_memory_proportion": {},
        "show_compilation_progress_bar": True,
        "relax_optimizer_attributes_checks": False,
        "stable_norm": False,
        "module_namescope_enabled": True,
        "source_location_excludes": [],
    }


def to_torchkiln(options: OptionStore) -> core.Options:
    """Return the equivalent Torchkiln options, with everything untranslated under `recorded`."""
    training = options.Training
    popart = options._Popart.options
    every_n = options.output_mode == OutputMode.EveryN
    # Without the key nobody said anything here: the engine's own default (the environment) holds.
    cache: dict[str, Any] = {}
    if "enableEngineCaching" in popart:
        cache["cache_dir"] = popart["cachePath"] if popart["enableEngineCaching"] else None
    division: dict[str, Any] = {}
    if (stages := Division.of(options)) is not None:
        division = {"pipeline": stages.pipeline, "pipeline_schedule": stages.schedule}
    engine_options = popart.get("engineOptions", {})
    return core.Options(
        profile_dir=report_directory(engine_options),
        device_iterations=int(options.device_iterations),
        gradient_accumulation=int(training.gradient_accumulation),
        replication_factor=int(options.replication_factor),
        input_group_size=options.input_group_size,
        input_grouping=_GROUPINGS[options.input_cgt],
        output_mode=_OUTPUT_MODES[OutputMode(options.output_mode)],
        # Other modes keep a period without using it, whatever it is.
        output_period=options.output_return_period if every_n else 1,
        reduction=_REDUCTIONS[training.accumulation_and_replication_reduction_type],
        random_seed=options.random_seed if options.exists("random_seed") else None,
        # The kinds of the original differ in what they keep; 0 is none.
        recompute="auto" if popart.get("autoRecomputation") else None,
        synthetic_data=bool(popart.get("syntheticDataMode")),
        check_finite=options.Precision.floating_point_exceptions,
        show_progress=options.show_compilation_progress_bar,
        num_processes=options.Distributed._num_ranks,
        process_id=options.Distributed._rank,
        shard_optimizer=_shards_optimizer(options),
        anchors={name: _anchor(*entry) for name, entry in options.anchored_tensors.items()},
        recorded=recorded(options),
        **cache,
        **division,
    )


def _shards_optimizer(options: OptionStore) -> bool:
    """Whether the optimiser's state is to be divided among replicas: here, among processes."""
    locations = options.TensorLocations.toDict()
    return bool(locations.get(_OPTIMIZER_LOCATION, {}).get(_SHARDING))


def recorded(options: OptionStore) -> dict[str, Any]:
    """Return the settings that were changed but mean nothing on this device."""
    initial = defaults()
    result = {
        name: value
        for name, value in options._values.items()
        if name not in _TRANSLATED and (name not in initial or initial[name] != value)
    }
    strategy = repr(options._execution_strategy)
    if strategy != repr(PipelinedExecution()):
        result["execution_strategy"] = strategy
    mean = options.Training.meanAccumulationAndReplicationReductionStrategy
    if mean != MeanReductionStrategy.Post:
        result["Training.meanAccumulationAndReplicationReductionStrategy"] = mean.name
    locations = dict(options.TensorLocations.toDict())
    optimizer = locations.pop(_OPTIMIZER_LOCATION, {})
    if rest := {name: value for name, value in optimizer.items() if name != _SHARDING}:
        locations[_OPTIMIZER_LOCATION] = rest
    result.update({f"TensorLocations.{name}": value for name, value in locations.items()})
    fresh = type(options._Popart)().options
    for key, value in options._Popart.options.items():
        if key == "engineOptions":
            value = {name: entry for name, entry in value.items() if name not in REPORT_KEYS}
            if not value:
                continue
        if key not in _TRANSLATED_POPART and (key not in fresh or fresh[key] != value):
            result[f"_Popart.{key}"] = value
    return result


def _anchor(tensor: str, follows_outputs: bool, mode: int, period: int) -> core.Anchor:
    if tensor == _LOSS_SCALE:
        raise NotImplementedError(
            f"the anchor {_LOSS_SCALE} is not implemented: the loss scale is never adjusted here; "
            "read optimizer.loss_scaling"
        )
    if follows_outputs:
        return core.Anchor(tensor)
    return core.Anchor(tensor, _OUTPUT_MODES[OutputMode(mode)], period)
