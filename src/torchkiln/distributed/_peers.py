"""`Peers`: the other processes of a group, and which of them can no longer answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import final

from torchkiln.distributed._connections import Connection
from torchkiln.distributed._members import Condition, Member


@final
class Peers:
    """What this process knows about the others.

    Args:
        rank: This process.
        size: How many there are.
        members: Those that introduced themselves, by rank.
        connections: Which connection leads to whom; may be incomplete.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        members: Mapping[int, Member],
        connections: Mapping[int, Connection],
    ) -> None:
        self.rank = rank
        self.size = size
        self._members = dict(members)
        self._connections = list(connections.items())

    def gone(self, *, trust_connections: bool = True) -> set[int]:
        """Return the ranks whose process ended or cannot be reached.

        Args:
            trust_connections: Whether a closed connection says that the other side has gone. After
                a collective timed out, gloo itself closes them all.
        """
        ended = {rank for rank, member in self._others() if member.condition() is Condition.ENDED}
        if not trust_connections:
            return ended
        closed = {rank for rank, one in self._connections if not one.is_open()}
        return ended | closed

    def stopped(self) -> set[int]:
        """Return the ranks on this host that were stopped, as Ctrl-Z or SIGSTOP do."""
        return {rank for rank, member in self._others() if member.condition() is Condition.STOPPED}

    def take(self, connections: Mapping[int, Connection]) -> None:
        """Take note of further connections, by the rank that they lead to."""
        self._connections += connections.items()

    def first_of_host(self) -> int:
        """Return the lowest rank among those on the host of this process."""
        own = self._members[self.rank]
        return min(rank for rank, member in self._members.items() if member.place == own.place)

    def shut_connections(self) -> None:
        """Let the others know that this process has left the collective that they are in.

        Each process waits for its neighbours only: without this, those that are not neighbours of
        a lost one would wait until their time is over.
        """
        for _, connection in self._connections:
            connection.shut()

    def named(self, ranks: Iterable[int]) -> str:
        """Return "rank 1 (process 4711 on kiln) and rank 3 (process 4713 on kiln)"."""
        names = [str(self._members.get(rank, f"rank {rank}")) for rank in sorted(ranks)]
        *most, last = names
        return f"{', '.join(most)} and {last}" if most else last

    def pids(self, ranks: Iterable[int]) -> str:
        """Return the numbers of these processes, for a command line."""
        return " ".join(str(self._members[rank].pid) for rank in sorted(ranks))

    def _others(self) -> list[tuple[int, Member]]:
        return [(rank, one) for rank, one in self._members.items() if rank != self.rank]
