"""What poprun writes into the environment is what popdist reads there."""

import pytest

from torchkiln.commands._poprun_layout import InstanceLayout
from torchkiln.core import DistributedError


def started(rank: int, size: int, **others: str) -> dict[str, str]:
    return {"RANK": str(rank), "WORLD_SIZE": str(size), **others}


def test_what_is_written_is_read_back_on_each_instance():
    layout = InstanceLayout(num_instances=3, num_local_replicas=2, num_ipus_per_replica=4)
    for rank in range(12):
        read = InstanceLayout.from_environment(started(rank, 12, **layout.to_environment()))
        assert read == InstanceLayout(3, 2, 4, instance_index=rank // 4, stage=rank % 4)
        assert (read.rank, read.num_processes) == (rank, 12)
        assert read.num_total_replicas == 6
        assert read.replica_index_offset == 2 * (rank // 4)


def test_torchrun_alone_has_one_replica_in_each_instance():
    read = InstanceLayout.from_environment(started(1, 4))
    assert read == InstanceLayout(4, 1, 1, instance_index=1)


def test_open_mpi_is_a_launcher_too():
    environment = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "3"}
    assert InstanceLayout.from_environment(environment) == InstanceLayout(3, instance_index=2)
    environment["POPDIST_NUM_LOCAL_REPLICAS"] = "4"
    assert InstanceLayout.from_environment(environment) == InstanceLayout(3, 4, instance_index=2)


@pytest.mark.parametrize("environment", [{}, {"RANK": "0"}])
def test_without_a_launcher_there_is_no_layout(environment):
    assert InstanceLayout.from_environment(environment) is None


@pytest.mark.parametrize(
    ("environment", "fragment"),
    [
        ({"POPDIST_NUM_TOTAL_REPLICAS": "2"}, "start it with poprun or torchrun"),
        (
            started(0, 2, POPDIST_NUM_TOTAL_REPLICAS="3"),
            "2 instances with 1 replicas each .* do not have 3",
        ),
        (
            started(0, 2, POPDIST_NUM_TOTAL_REPLICAS="2", POPDIST_NUM_LOCAL_REPLICAS="2"),
            "2 instances with 2 replicas each .* do not have 2",
        ),
        (started(2, 2), "rank 2 of 2 processes"),
        (started(0, 3, POPDIST_NUM_IPUS_PER_REPLICA="2"), "start a multiple of 2"),
        (
            started(0, 2, POPDIST_NUM_LOCAL_REPLICAS="many"),
            "LOCAL_REPLICAS must be a number from 1 on",
        ),
        (started(0, 2, POPDIST_NUM_IPUS_PER_REPLICA="0"), "PER_REPLICA must be a number from 1 on"),
    ],
)
def test_contradictions_are_errors(environment, fragment):
    with pytest.raises(DistributedError, match=fragment):
        InstanceLayout.from_environment(environment)
