"""popdist says which instance this is, by what poprun or torchrun left in the environment."""

import pytest

import popdist
import poptorch
from torchkiln.core import DistributedError


@pytest.fixture
def second_of_three(monkeypatch):
    """This process is a stage of instance 1 of 3, with 2 replicas each."""
    for name, value in {
        "RANK": "6",
        "WORLD_SIZE": "12",
        "POPDIST_NUM_TOTAL_REPLICAS": "6",
        "POPDIST_NUM_LOCAL_REPLICAS": "2",
        "POPDIST_NUM_IPUS_PER_REPLICA": "4",
    }.items():
        monkeypatch.setenv(name, value)


def test_without_a_launcher_there_is_one_instance_with_one_replica():
    assert popdist.isPopdistEnvSet() is False
    assert popdist.getInstanceIndex() == 0
    assert popdist.getNumInstances() == 1
    assert popdist.getNumTotalReplicas() == 1
    assert popdist.getNumLocalReplicas() == 1
    assert popdist.getNumIpusPerReplica() == 1
    assert popdist.getReplicaIndexOffset() == 0


@pytest.mark.usefixtures("second_of_three")
def test_the_numbers_are_those_of_the_launcher():
    assert popdist.isPopdistEnvSet() is True
    assert popdist.getInstanceIndex() == 1
    assert popdist.getNumInstances() == 3
    assert popdist.getNumTotalReplicas() == 6
    assert popdist.getNumLocalReplicas() == 2
    assert popdist.getNumIpusPerReplica() == 4
    assert popdist.getReplicaIndexOffset() == 2


def test_torchrun_is_a_launcher_too(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert popdist.isPopdistEnvSet()
    assert popdist.getNumTotalReplicas() == 2


def test_contradictions_are_runtime_errors(monkeypatch):
    monkeypatch.setenv("POPDIST_NUM_TOTAL_REPLICAS", "2")
    with pytest.raises(RuntimeError, match="start it with poprun") as caught:
        popdist.getInstanceIndex()
    assert isinstance(caught.value, DistributedError)


@pytest.mark.usefixtures("second_of_three")
def test_ipus_per_replica_are_compared_with_what_poprun_was_told():
    popdist.checkNumIpusPerReplica(4)
    with pytest.raises(RuntimeError, match="poprun --ipus-per-replica=2"):
        popdist.checkNumIpusPerReplica(2)
    assert popdist.getDeviceId() == popdist.getDeviceId(4) == 0
    with pytest.raises(RuntimeError, match="poprun was told 4"):
        popdist.getDeviceId(1)


def test_ipus_per_replica_are_the_programs_own_affair_without_poprun():
    popdist.checkNumIpusPerReplica(16)


@pytest.mark.usefixtures("second_of_three")
def test_functions_run_on_the_named_instances_only():
    calls = []

    def note(value, *, twice):
        calls.append((value, twice))
        return value * 2

    assert popdist.execute_on_instances({0, 2}, note, 3, twice=True) is None
    assert popdist.execute_on_instances([1], note, 4, twice=False) == 8
    assert calls == [(4, False)]


def test_the_version_is_that_of_the_other_facades():
    assert popdist.__version__ == poptorch.__version__
