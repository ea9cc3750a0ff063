"""Connections between the processes of a run: which there are, and which were closed."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

Address = tuple[str, int]
# Both ends of a connection: that of this process, and that of the other one.
Ends = tuple[Address, Address]

_FOLDER = "/proc/self/fd"
# States of a connection as Linux numbers them, in the first byte of TCP_INFO.
_ESTABLISHED = 1


@dataclass(frozen=True, slots=True)
class Connection:
    """One TCP connection of this process.

    Args:
        descriptor: Its number in this process.
        inode: What tells it from a later one with that number.
        ends: Both addresses.
    """

    descriptor: int
    inode: int
    ends: Ends

    def is_open(self) -> bool:
        """Whether neither side has closed it."""
        with self._held() as held:
            if held is None:
                return False
            try:
                state = held.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
            except OSError:
                return False
            return state[0] == _ESTABLISHED

    def shut(self) -> None:
        """Let both sides know that nothing will come any more."""
        with self._held() as held, contextlib.suppress(OSError):
            if held is not None:
                held.shutdown(socket.SHUT_RDWR)

    def notice_silence(self, after_s: float) -> None:
        """Let the system close it if the other host does not answer for this long.

        Hosts answer for processes that are busy or stopped: only one that is gone is silent.
        """
        pause = max(1, int(after_s / 4))
        with self._held() as held, contextlib.suppress(OSError):
            if held is not None:
                held.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                held.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, pause)
                held.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, pause)
                held.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)

    @contextlib.contextmanager
    def _held(self) -> Iterator[socket.socket | None]:
        """Yield the connection under a second number, so that nobody else can close it meanwhile.

        None: it was closed, and its number may belong to something else by now.
        """
        try:
            number = os.dup(self.descriptor)
        except OSError:
            yield None
            return
        if os.fstat(number).st_ino != self.inode:
            os.close(number)
            yield None
            return
        with socket.socket(fileno=number) as held:
            yield held


def connections() -> list[Connection]:
    """Return the TCP connections of this process; none where the system does not tell."""
    found = []
    for descriptor, inode in sockets():
        here, there = addresses_of(descriptor)
        if here is not None and there is not None:
            found.append(Connection(descriptor, inode, (here, there)))
    return found


def by_rank(
    own: Iterable[Connection], of_others: Mapping[int, Iterable[Ends]]
) -> dict[int, Connection]:
    """Return which connection leads to which process.

    Args:
        own: Connections of this process.
        of_others: Ends of the connections of each other process. A connection of ours is one of
            theirs with the ends exchanged, so one that leads elsewhere is never taken for one.
    """
    ranks = {(there, here): rank for rank, ends in of_others.items() for here, there in ends}
    return {ranks[one.ends]: one for one in own if one.ends in ranks}


def sockets() -> Iterator[tuple[int, int]]:
    """Yield descriptor and inode of every socket of this process."""
    try:
        names = os.listdir(_FOLDER)
    except OSError:  # no Linux
        return
    for name in names:
        try:
            target = os.readlink(f"{_FOLDER}/{name}")
        except OSError:  # closed meanwhile
            continue
        kind, _, inode = target.partition(":")
        if kind == "socket":
            yield int(name), int(inode.strip("[]"))


def addresses_of(descriptor: int) -> tuple[Address | None, Address | None]:
    """Return both ends of a TCP socket; None for one that there is not."""
    try:
        with socket.socket(fileno=os.dup(descriptor)) as held:
            if held.family not in (socket.AF_INET, socket.AF_INET6):
                return None, None
            if held.type != socket.SOCK_STREAM:
                return None, None
            here = _plain(held.getsockname())
            try:
                return here, _plain(held.getpeername())
            except OSError:  # it listens, or lost its other end
                return here, None
    except OSError:  # closed meanwhile
        return None, None


def _plain(address: tuple[str, int] | tuple[str, int, int, int]) -> Address:
    return address[0].removeprefix("::ffff:"), address[1]
