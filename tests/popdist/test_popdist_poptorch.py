"""`popdist.poptorch.Options`: poptorch's options for the instance that this process is."""

import pytest

import popdist.poptorch
import poptorch


@pytest.fixture(autouse=True)
def _second_of_two(monkeypatch):
    for name, value in {
        "RANK": "3",
        "WORLD_SIZE": "4",
        "POPDIST_NUM_TOTAL_REPLICAS": "8",
        "POPDIST_NUM_LOCAL_REPLICAS": "4",
        "POPDIST_NUM_IPUS_PER_REPLICA": "2",
    }.items():
        monkeypatch.setenv(name, value)


def test_processes_and_replicas_are_filled_in():
    opts = popdist.poptorch.Options(ipus_per_replica=2)
    assert isinstance(opts, poptorch.Options)
    assert (opts.Distributed.processId, opts.Distributed.numProcesses) == (1, 2)
    assert opts.replication_factor == 4
    engine = opts._to_torchkiln()
    # An instance is a process for each stage of the model.
    assert (engine.process_id, engine.num_processes, engine.replication_factor) == (3, 4, 4)
    assert (engine.pipeline_id, engine.num_pipelines, engine.stage) == (1, 2, 1)
    assert engine.total_micro_batches_per_update == 8


def test_all_other_options_are_poptorchs(monkeypatch):
    # With stages, poptorch's own options count processes, and popdist's count instances.
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "IPUS_PER_REPLICA": "1"}.items():
        monkeypatch.setenv(f"POPDIST_NUM_{name}" if "IPUS" in name else name, value)
    opts = popdist.poptorch.Options().deviceIterations(3)
    opts.Training.gradientAccumulation(2)
    assert opts._to_torchkiln().combined_factor == 3 * 2 * 4
    own = poptorch.Options().deviceIterations(3).replicationFactor(4)
    own.Training.gradientAccumulation(2)
    assert repr(opts) == repr(own.clone())


def test_copies_are_of_the_same_instance():
    copy = popdist.poptorch.Options(ipus_per_replica=2).clone()
    assert type(copy) is popdist.poptorch.Options
    assert (copy.Distributed.processId, copy.replication_factor) == (1, 4)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("replicationFactor", [2]),
        ("useIpuId", [0]),
        ("Distributed.configureProcessId", [0, 2]),
        ("Distributed.setEnvVarNames", ["SIZE", "RANK"]),
        ("Distributed.disable", []),
    ],
)
def test_what_poprun_decides_cannot_be_set(name, arguments):
    opts = setter = popdist.poptorch.Options(ipus_per_replica=2)
    before = repr(opts)
    for part in name.split("."):
        setter = getattr(setter, part)
    with pytest.raises(RuntimeError, match=rf"do not have {name}: poprun decides"):
        setter(*arguments)
    assert repr(opts) == before


def test_another_number_of_ipus_is_refused():
    with pytest.raises(RuntimeError, match="poprun --ipus-per-replica=1"):
        popdist.poptorch.Options()


def test_without_a_launcher_they_are_of_one_process(monkeypatch):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name)
    for name in ("TOTAL_REPLICAS", "LOCAL_REPLICAS", "IPUS_PER_REPLICA"):
        monkeypatch.delenv(f"POPDIST_NUM_{name}")
    assert repr(popdist.poptorch.Options(ipus_per_replica=4)) == repr(poptorch.Options())
