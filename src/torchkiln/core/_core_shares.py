"""Which of a host's cores a process of a run computes on. No torch."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from torchkiln.core._launch import Launch

_PROC = Path("/proc")
_CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def slice_of(cores: Sequence[int], index: int, count: int) -> list[int]:
    """Return the cores of one of several processes that share them; at least one.

    Slices are of neighbours and differ by one core at most. Processes that are more than the cores
    share them one by one.
    """
    if count > len(cores):
        return [cores[index % len(cores)]]
    least, more = divmod(len(cores), count)
    begin = index * least + min(index, more)
    return list(cores[begin : begin + least + (index < more)])


def own_slice(cores: Sequence[int], launch: Launch | None) -> list[int]:
    """Return the cores of this process, before it has asked the others what they may use.

    torchrun starts all processes of a host on the same cores. mpirun and srun usually give each its
    own: then nothing is left to divide, which shows in how few they are.
    """
    if launch is None or launch.local_rank is None or launch.local_size is None:
        return list(cores)
    if launch.launcher != "torchrun" and len(cores) * launch.local_size <= _cores_of_job():
        return list(cores)
    return slice_of(cores, launch.local_rank, launch.local_size)


def cpu_quota(path: Path = _CPU_QUOTA) -> float | None:
    """Return how many cores a container may use; None: as many as there are."""
    try:
        limit, period = path.read_text().split()
        return None if limit == "max" else int(limit) / int(period)
    except (OSError, ValueError):
        return None


def within_quota(cores: Sequence[int], num_processes: int = 1) -> int:
    """Return how many of these cores one of so many processes can keep busy, at least one."""
    quota = cpu_quota()
    if quota is None:
        return len(cores)
    return max(1, min(len(cores), round(quota / num_processes)))


def threads_of_user(variables: Mapping[str, str] | None = None) -> int | None:
    """Return the OMP_NUM_THREADS that a person chose; None: nobody did.

    torchrun sets it to 1 if it is not set. Whether it did shows in the environment that torchrun
    itself was started with.
    """
    own = os.environ if variables is None else variables
    text = own.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if not text.isdecimal() or int(text) == 0:
        return None
    if text == "1" and "TORCHELASTIC_RUN_ID" in own and not _torchrun_was_given_threads():
        return None
    return int(text)


def _torchrun_was_given_threads() -> bool:
    """Whether OMP_NUM_THREADS was there when torchrun started; not if that cannot be told."""
    pid = os.getppid()
    while pid > 1:
        try:
            names = {
                entry.partition(b"=")[0]
                for entry in (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
            }
            status = (_PROC / str(pid) / "stat").read_bytes()
        except OSError:
            return False
        # What torchrun started has this variable, also a shell between it and this process.
        if b"TORCHELASTIC_RUN_ID" not in names:
            return b"OMP_NUM_THREADS" in names
        pid = int(status.rpartition(b")")[2].split()[1])
    return False


def _cores_of_job() -> int:
    """Return how many cores all processes of the launch on this host have together."""
    text = os.environ.get("SLURM_CPUS_ON_NODE", "")
    return int(text) if text.isdecimal() else os.cpu_count() or 1
