"""docs/poptorch.md lists every public name, and says the truth where that can be checked."""

import inspect
import re
from pathlib import Path

import pytest
import torch

import poptorch
import poptorch.testing
from poptorch import enums, optim, options

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "poptorch.md"
STATES = {"works", "recorded", "differs", "not implemented"}


def read_tables():
    """Return {heading: {name: state}} for every table of names."""
    tables, heading = {}, ""
    for line in DOCUMENT.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ").strip()
        row = re.match(r"\| `([^`]+)` \| ([a-z ]+) \|", line)
        if row:
            names = tables.setdefault(heading, {})
            assert row[1] not in names, f"{row[1]} is listed twice under {heading}"
            names[row[1]] = row[2].strip()
    return tables


TABLES = read_tables()


def members(kind, beyond=object):
    """Return the public members of a class that `beyond` does not have."""
    inherited = set(dir(beyond))
    return {n for n in dir(kind) if not n.startswith("_") and n not in inherited}


STORE = options.OptionStore
EXPECTED = {
    "Module": set(poptorch.__all__) - set(enums.__all__),
    "Enumerations": set(enums.__all__),
    "Options": members(poptorch.Options),
    "Options.Training": members(options._TrainingOptions, STORE),
    "Options.Precision": members(options._PrecisionOptions, STORE),
    "Options.Distributed": members(options._DistributedOptions, STORE),
    "Options.TensorLocations": members(options._TensorLocationOptions, STORE),
    "TensorLocationSettings": members(poptorch.TensorLocationSettings, STORE),
    "Options.Jit": members(options._JitOptions, STORE),
    "Options._Popart": members(options._PopartOptions),
    "PoplarExecutor": members(poptorch.PoplarExecutor),
    "poptorch.optim": set(optim.__all__),
    "poptorch.profiling": set(poptorch.profiling.__all__),
    "poptorch.testing": set(poptorch.testing.__all__),
}


@pytest.mark.parametrize("heading", EXPECTED)
def test_every_public_name_is_listed_and_nothing_else(heading):
    assert set(TABLES[heading]) == EXPECTED[heading]


def test_states_are_the_four_that_are_explained():
    assert {state for names in TABLES.values() for state in names.values()} <= STATES


def test_listed_loader_members_exist():
    for name in TABLES["Loaders"]:
        kind, _, member = name.partition(".")
        assert member in dir(getattr(poptorch, kind))


# Arguments that change an option, by setter.
SAMPLES = {
    "deviceIterations": [2],
    "replicationFactor": [2],
    "outputMode": [poptorch.OutputMode.Sum],
    "anchorTensor": ["g", "Gradient___w"],
    "randomSeed": [1],
    "enableExecutableCaching": ["cache"],
    "showCompilationProgressBar": [False],
    "setExecutionStrategy": [poptorch.ShardedExecution()],
    "broadcastBuffers": [False],
    "autoRoundNumIPUs": [],
    "setAvailableMemoryProportion": [{"IPU0": 0.5}],
    "enableSyntheticData": [True],
    "enableStableNorm": [True],
    "logCycleCount": [True],
    "enableProfiling": ["profile"],
    "logDir": ["logs"],
    "maxRepeatLogs": [7],
    "useIpuModel": [True],
    "useIpuId": [1],
    "syncPattern": [poptorch.SyncPattern.SinglePipeline],
    "disableModuleNamescope": [],
    "sourceLocationExcludes": [["file.py"]],
    "appendToLocationExcludes": ["file.py"],
    "Training.gradientAccumulation": [2],
    "Training.accumulationAndReplicationReductionType": [poptorch.ReductionType.Sum],
    "Training.setMeanAccumulationAndReplicationReductionStrategy": [
        poptorch.MeanReductionStrategy.Running
    ],
    "Training.setAutomaticLossScaling": [True],
    "Training.setConvolutionDithering": [True],
    "Precision.enableFloatingPointExceptions": [True],
    "Precision.enableStochasticRounding": [True],
    "Precision.setPartialsType": [torch.half],
    "Distributed.configureProcessId": [1, 2],
    "TensorLocations.numIOTiles": [32],
    "TensorLocations.setWeightLocation": [poptorch.TensorLocationSettings().useOnChipStorage()],
    "_Popart.set": ["key", "value"],
    "_Popart.setEngineOptions": [{"key": "value"}],
    "_Popart.setPatterns": [{"pattern": True}],
}


def state_of(setter):
    group, _, name = setter.rpartition(".")
    return TABLES[f"Options.{group}" if group else "Options"][name]


@pytest.mark.parametrize("setter", SAMPLES)
def test_options_do_what_their_state_says(setter):
    changed = poptorch.Options()
    target = changed
    for part in setter.split("."):
        target = getattr(target, part)
    target(*SAMPLES[setter])
    before, after = poptorch.Options()._to_torchkiln(), changed._to_torchkiln()
    reaches_the_engine = before != after.replace(recorded={})
    assert reaches_the_engine is (state_of(setter) != "recorded")
    assert repr(changed) != repr(poptorch.Options())


def test_recorded_options_reach_the_recorded_mapping():
    for setter, arguments in SAMPLES.items():
        if state_of(setter) == "recorded":
            opts = target = poptorch.Options()
            for part in setter.split("."):
                target = getattr(target, part)
            target(*arguments)
            assert opts._to_torchkiln().recorded, setter


UNIMPLEMENTED_CALLS = {
    "getIpuTensorId": lambda: poptorch.getIpuTensorId(torch.ones(1)),
}


def test_names_that_are_not_implemented_say_so():
    missing = {name for name, state in TABLES["Module"].items() if state == "not implemented"}
    assert missing == set(UNIMPLEMENTED_CALLS)
    for name, call in UNIMPLEMENTED_CALLS.items():
        with pytest.raises(NotImplementedError, match=name):
            call()


def test_every_public_callable_has_a_docstring():
    for name in EXPECTED["Module"]:
        value = getattr(poptorch, name)
        if inspect.isroutine(value) or inspect.isclass(value):
            assert value.__doc__, name
