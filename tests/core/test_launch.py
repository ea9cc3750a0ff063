"""What launchers say in the environment, and what they leave out."""

from __future__ import annotations

import pytest

from torchkiln.core import DistributedError
from torchkiln.core._launch import Launch, launched

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "3217031169",
}
# Of a job with five tasks on three nodes; these are the second node's second task.
SLURM = {
    "SLURM_JOB_ID": "77",
    "SLURM_NTASKS": "9",
    "SLURM_STEP_ID": "2",
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
    "SLURM_NODEID": "1",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
}


def test_nobody_started_it():
    assert launched({}) is None
    assert launched({"RANK": "3"}) is None
    assert launched({"WORLD_SIZE": "1"}) is None


def test_torchrun():
    assert launched(TORCHRUN) == Launch("torchrun", 3, 4, 1, 2)


def test_variables_of_torchrun_without_those_of_the_host():
    assert launched({"RANK": "0", "WORLD_SIZE": "2"}) == Launch("torchrun", 0, 2, None, None)


def test_open_mpi():
    assert launched(OPEN_MPI) == Launch("Open MPI", 1, 2, 1, 2, "3217031169")


def test_a_step_of_slurm():
    assert launched(SLURM) == Launch("SLURM", 3, 5, 1, 2, "77.2")


@pytest.mark.parametrize("step", [None, "4294967291", "4294967290", "4294967292"])
def test_a_script_of_sbatch_or_a_shell_of_salloc_is_alone(step):
    """They know the number of tasks, but nobody has started the others."""
    shell = {"SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_JOB_ID": "7"}
    assert launched(shell | ({} if step is None else {"SLURM_STEP_ID": step})) is None


def test_torchrun_counts_before_mpi_and_slurm():
    """Both start torchrun, and their variables are inherited."""
    found = launched({**SLURM, **OPEN_MPI, **TORCHRUN})
    assert found is not None
    assert found.launcher == "torchrun"


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"WORLD_SIZE": "2"}, "RANK is not set"),
        ({"WORLD_SIZE": "two", "RANK": "0"}, "WORLD_SIZE must be a whole number, got 'two'"),
        ({"WORLD_SIZE": "2", "RANK": "2"}, "ranks go from 0 to 1"),
        ({**TORCHRUN, "LOCAL_RANK": "2"}, "process 2 of 2 on its host"),
        ({**TORCHRUN, "LOCAL_WORLD_SIZE": "5"}, "there are 4 in all"),
    ],
)
def test_variables_that_cannot_be_are_refused(variables, words):
    with pytest.raises(DistributedError, match=words):
        launched(variables)


def test_whether_all_are_on_one_host():
    assert Launch("torchrun", 0, 2, 0, 2).is_on_one_host
    assert not Launch("torchrun", 0, 4, 0, 2).is_on_one_host
    assert not Launch("torchrun", 0, 2, None, None).is_on_one_host  # nobody said so
