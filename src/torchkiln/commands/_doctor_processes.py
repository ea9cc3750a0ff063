"""Several processes that train together: what they could talk with, and who computes where."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import final

from torchkiln.commands._findings import Finding
from torchkiln.core._core_shares import slice_of, threads_of_user
from torchkiln.core._launch import launched
from torchkiln.core._threads import usable_cores

# Ranks of one command start within seconds of each other.
_TOGETHER_S = 60.0


@final
@dataclass(frozen=True, slots=True)
class Place:
    """Where one process computes.

    Args:
        host: The name of its machine.
        pid: Its number there.
        threads: How many torch uses.
        cores: On which they run.
        interface: The network over which it talks; empty: unknown.
        chosen: Whether the user set OMP_NUM_THREADS.
    """

    host: str
    pid: int
    threads: int
    cores: tuple[int, ...]
    interface: str
    chosen: bool


def speaks() -> bool:
    """Whether this process prints the diagnosis: rank 0, or one that is alone."""
    launch = launched()
    return launch is None or launch.rank == 0


def processes() -> Iterator[Finding]:
    """Yield backends, and threads, cores and network of each process of this run."""
    yield _backends()
    launch = launched()
    if launch is None or launch.size == 1:
        yield Finding("this process", "alone: no launcher started others with it")
        yield _division(sorted(usable_cores()))
        return
    yield Finding("launcher", f"{launch.launcher}, {launch.size} processes")
    from torchkiln.distributed import group_of, start

    world = start(_TOGETHER_S)
    places = group_of(world, _TOGETHER_S).gather(_own_place())
    yield from findings_of(places)


def findings_of(places: Sequence[Place]) -> Iterator[Finding]:
    """Yield one finding for each rank, and one for those that get in each other's way."""
    for rank, place in enumerate(places):
        network = f", talks over {place.interface}" if place.interface else ""
        reason = ", as OMP_NUM_THREADS says" if place.chosen else ""
        yield Finding(
            f"rank {rank}",
            f"process {place.pid} on {place.host}: {_counted(place.threads, 'thread')} on "
            f"{_cores(place.cores)}{reason}{network}",
        )
    for host, (wanted, cores) in _wanted(places).items():
        if wanted > cores:
            yield Finding(
                "competition",
                f"the processes on {host} have {wanted} threads for {_counted(cores, 'core')}",
                "unset OMP_NUM_THREADS, so that they divide the cores, or start fewer processes",
            )


def _wanted(places: Sequence[Place]) -> Mapping[str, tuple[int, int]]:
    """Return for each host how many threads there are, and how many cores they run on."""
    hosts = dict.fromkeys(place.host for place in places)
    here = {host: [place for place in places if place.host == host] for host in hosts}
    return {
        host: (
            sum(place.threads for place in some),
            len({core for place in some for core in place.cores}),
        )
        for host, some in here.items()
    }


def _own_place() -> Place:
    import torch

    return Place(
        socket.gethostname(),
        os.getpid(),
        torch.get_num_threads(),
        tuple(sorted(usable_cores())),
        os.environ.get("GLOO_SOCKET_IFNAME", ""),
        threads_of_user() is not None,
    )


def _backends() -> Finding:
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_gloo_available():
        return Finding(
            "backends",
            "this torch has no gloo, so processes cannot train together",
            "install torch from PyPI, whose builds for Linux have it",
        )
    nccl = "nccl for GPUs" if dist.is_nccl_available() else "no nccl, which only GPUs need"
    return Finding("backends", f"gloo for CPUs; {nccl}")


def _division(cores: Sequence[int]) -> Finding:
    count = min(2, len(cores)) or 1
    share = len(slice_of(cores, 0, count))
    return Finding(
        "several processes",
        f"torchrun --standalone --nproc-per-node {count} starts {count}, each with "
        f"{share} of the {_counted(len(cores), 'core')}",
    )


def _cores(cores: Sequence[int]) -> str:
    if len(cores) > 2 and list(cores) == list(range(cores[0], cores[-1] + 1)):
        return f"cores {cores[0]} to {cores[-1]}"
    text = ", ".join(map(str, cores))
    return f"core {text}" if len(cores) == 1 else f"cores {text}"


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
