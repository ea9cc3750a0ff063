"""Where the processes of a run meet: address, port, and the network interface that leads there.

Every process connects to a store at MASTER_ADDR and MASTER_PORT, which lives in rank 0, or in the
process of torchrun. Launchers other than torchrun set neither. On one host the address is then
127.0.0.1, and the port is made from the name of the job, which all its processes know; several
hosts need MASTER_ADDR. What the user set always counts.
"""

from __future__ import annotations

import hashlib
import os
import socket
from dataclasses import dataclass
from typing import final

import psutil

from torchkiln.core import DistributedError
from torchkiln.core._launch import Launch

# Below the ports that systems give to connections that ask for any.
_FIRST_PORT, _NUM_PORTS = 15_000, 15_000
_LOOPBACK = ("127.", "::1")


@final
@dataclass(frozen=True, slots=True)
class MeetingPoint:
    """Where the store of a run is.

    Args:
        host: A name or an address.
        port: Of the store.
    """

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    def addresses(self) -> list[str]:
        """Return the addresses of the host, the preferred one first.

        Raises:
            DistributedError: There is no such host.
        """
        try:
            found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise DistributedError(
                f"there is no host called {self.host!r} ({error}); set MASTER_ADDR to a name or an "
                f"address of the host of rank 0 that this host knows"
            ) from error
        return [str(entry[4][0]) for entry in found]


def meeting_point(launch: Launch) -> MeetingPoint:
    """Return where the processes of this launch meet.

    Raises:
        DistributedError: The user must say it, and did not.
    """
    return MeetingPoint(_host(launch), _port(launch))


def choose_interface(point: MeetingPoint, launch: Launch) -> str | None:
    """Let gloo use the interface that leads to the meeting point, and return its name.

    By default gloo takes the one that the name of this host stands for, often the loopback. A
    GLOO_SOCKET_IFNAME that the user set counts. None: it cannot be told, and gloo decides.
    """
    chosen = os.environ.get("GLOO_SOCKET_IFNAME")
    if not chosen:
        chosen = _interface_of(_own_address(point))
        if chosen is not None and not launch.is_on_one_host and _is_loopback(chosen):
            # Debian gives 127.0.1.1 to a host's own name: others cannot reach it there.
            chosen = _only_network()
        if chosen is not None:
            os.environ["GLOO_SOCKET_IFNAME"] = chosen
    return chosen


def _host(launch: Launch) -> str:
    host = os.environ.get("MASTER_ADDR")
    if host:
        return host
    if launch.is_on_one_host:
        return "127.0.0.1"
    example = {
        "SLURM": 'export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1) '
        "before srun",
        "Open MPI": "mpirun -x MASTER_ADDR=HOST ...",
        "torchrun": "torchrun does it by itself",
    }[launch.launcher]
    raise DistributedError(
        f"the {launch.size} processes are on several hosts, and MASTER_ADDR is not set: set it to "
        f"the name or address of the host of rank 0, the same for all of them ({example})"
    )


def _port(launch: Launch) -> int:
    text = os.environ.get("MASTER_PORT", "")
    if text:
        if not text.isdecimal() or not 0 < int(text) < 2**16:
            raise DistributedError(f"MASTER_PORT must be a number from 1 to 65535, got {text!r}")
        return int(text)
    if not launch.job:
        raise DistributedError(
            "RANK and WORLD_SIZE are set, but MASTER_PORT is not: set it to a free port on the "
            "host of rank 0, the same for all processes, or start them with torchrun, which does so"
        )
    digest = hashlib.sha256(launch.job.encode()).digest()
    return _FIRST_PORT + int.from_bytes(digest[:4], "big") % _NUM_PORTS


def _own_address(point: MeetingPoint) -> str | None:
    """Return the address of this host from which packets to the meeting point leave."""
    for address in point.addresses():
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((address, point.port))  # chooses a route; nothing is sent
            except OSError:
                continue
            return str(probe.getsockname()[0])
    return None


def _interface_of(address: str | None) -> str | None:
    if address is None:
        return None
    if address.startswith(_LOOPBACK):
        address = "::1" if ":" in address else "127.0.0.1"  # 127.0.1.1 has no entry of its own
    for name, entries in psutil.net_if_addrs().items():
        if any(entry.address.partition("%")[0] == address for entry in entries):
            return name
    return None


def _is_loopback(interface: str) -> bool:
    entries = psutil.net_if_addrs().get(interface, [])
    return any(entry.address.startswith(_LOOPBACK) for entry in entries)


def _only_network() -> str | None:
    """Return the one interface that is no loopback and has an address.

    Raises:
        DistributedError: There are several.
    """
    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    names = sorted(
        name
        for name, entries in psutil.net_if_addrs().items()
        if name in up
        and not _is_loopback(name)
        and any(entry.family in (socket.AF_INET, socket.AF_INET6) for entry in entries)
    )
    if len(names) > 1:
        raise DistributedError(
            f"MASTER_ADDR is a loopback address on this host, and the network between the hosts "
            f"may be any of {', '.join(names)}: set MASTER_ADDR to an address, or "
            f"GLOO_SOCKET_IFNAME to one of these"
        )
    return names[0] if names else None
