"""`Launch`: what a launcher told this process about the others that it started. No torch.

A world of several processes is started by torchrun, by Open MPI's mpirun, or by SLURM's srun. Each
of them says in variables of the environment which of the processes this one is.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from torchkiln.core._errors import DistributedError

# SLURM's numbers for steps that are none: the batch script, the shell of salloc, and the like.
_FIRST_SPECIAL_STEP = 0xFFFFFFF0

# By which variable a process takes itself for one of several.
_SAYS_SO = {
    "torchrun": "WORLD_SIZE",
    "Open MPI": "OMPI_COMM_WORLD_SIZE",
    "SLURM": "SLURM_STEP_ID",
}


@final
@dataclass(frozen=True, slots=True)
class Launch:
    """The place of this process among those that were started together.

    Args:
        launcher: Who started it: "torchrun", "Open MPI" or "SLURM".
        rank: This process, from 0.
        size: How many there are.
        local_rank: This process among those on its host; None: the launcher did not say.
        local_size: How many of them are on its host; None: the launcher did not say.
        job: A text that all of them have in common, and no others on these hosts; empty: none.
    """

    launcher: str
    rank: int
    size: int
    local_rank: int | None
    local_size: int | None
    job: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size:
            raise DistributedError(
                f"{self.launcher} says that this is rank {self.rank} of {self.size} processes; "
                f"ranks go from 0 to {self.size - 1}"
            )
        local, on_host = self.local_rank, self.local_size
        if local is not None and on_host is not None and not 0 <= local < on_host <= self.size:
            raise DistributedError(
                f"{self.launcher} says that this is process {local} of {on_host} on its host, and "
                f"that there are {self.size} in all; that cannot be"
            )

    @property
    def is_on_one_host(self) -> bool:
        """Whether all processes are known to be on this host."""
        return self.local_size == self.size

    @property
    def how_to_be_alone(self) -> str:
        """What helps if no others were started, and what the launcher left was only still there."""
        name = _SAYS_SO[self.launcher]
        return (
            f"if it is to train alone, remove {name}, which says that {self.launcher} started it "
            f"with {self.size - 1} more"
        )


def launched(environment: Mapping[str, str] | None = None) -> Launch | None:
    """Return what the launcher of this process said; None: there was none.

    Raises:
        DistributedError: Its variables are not complete, or contradict each other.
    """
    variables = os.environ if environment is None else environment
    for found in (_by_torchrun(variables), _by_open_mpi(variables), launched_by_slurm(variables)):
        if found is not None:
            return found
    return None


def _by_torchrun(variables: Mapping[str, str]) -> Launch | None:
    size = _number(variables, "WORLD_SIZE")
    rank = _number(variables, "RANK")
    if size is None or (rank is None and size == 1):
        return None
    if rank is None:
        raise DistributedError(
            f"WORLD_SIZE is {size}, but RANK is not set, so this process does not know which of "
            f"them it is; start it with torchrun, set RANK, or remove WORLD_SIZE to train alone"
        )
    return Launch(
        "torchrun",
        rank,
        size,
        _number(variables, "LOCAL_RANK"),
        _number(variables, "LOCAL_WORLD_SIZE"),
    )


def _by_open_mpi(variables: Mapping[str, str]) -> Launch | None:
    rank = _number(variables, "OMPI_COMM_WORLD_RANK")
    size = _number(variables, "OMPI_COMM_WORLD_SIZE")
    if rank is None or size is None:
        return None
    return Launch(
        "Open MPI",
        rank,
        size,
        _number(variables, "OMPI_COMM_WORLD_LOCAL_RANK"),
        _number(variables, "OMPI_COMM_WORLD_LOCAL_SIZE"),
        # A script between mpirun and Python has other parents, but the same name of the job.
        variables.get("PMIX_NAMESPACE")
        or variables.get("OMPI_MCA_ess_base_jobid")
        or str(os.getppid()),
    )


def launched_by_slurm(variables: Mapping[str, str]) -> Launch | None:
    """Return what srun said.

    The shell of salloc and the script of sbatch know the number of tasks as well, but they are one
    process: nobody started the others yet.
    """
    step = _number(variables, "SLURM_STEP_ID")
    rank = _number(variables, "SLURM_PROCID")
    size = _number(variables, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
    if step is None or step >= _FIRST_SPECIAL_STEP or rank is None or size is None:
        return None
    return Launch(
        "SLURM",
        rank,
        size,
        _number(variables, "SLURM_LOCALID"),
        _tasks_on_node(variables),
        f"{variables.get('SLURM_JOB_ID', '')}.{step}",
    )


def _tasks_on_node(variables: Mapping[str, str]) -> int | None:
    """Return how many tasks of the step run on this node, from a text like `2(x3),1`."""
    node = _number(variables, "SLURM_NODEID")
    text = variables.get("SLURM_STEP_TASKS_PER_NODE", "")
    counts: list[int] = []
    for tasks, nodes in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        counts += [int(tasks)] * int(nodes or 1)
    return counts[node] if node is not None and node < len(counts) else None


def _number(variables: Mapping[str, str], *names: str) -> int | None:
    """Return the first of these variables that is set."""
    for name in names:
        text = variables.get(name, "")
        if not text:
            continue
        if not re.fullmatch(r"\d+", text.strip()):
            raise DistributedError(f"{name} must be a whole number, got {text!r}")
        return int(text)
    return None
