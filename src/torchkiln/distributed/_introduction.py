"""How the processes of a run get to know each other, through the store."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

from torchkiln.core import DistributedError
from torchkiln.distributed._connections import Connection, Ends, by_rank
from torchkiln.distributed._members import Member, member_from_json, member_to_json, this_member
from torchkiln.distributed._peers import Peers
from torchkiln.distributed._store import Board, StoreGoneError

_PAUSE_S = 0.01
# How long a process that gives up leaves its reason at the store, which may end with it.
_LINGER_S = 0.5
_GIVEN_UP = "given up"


def arrive(
    board: Board,
    rank: int,
    size: int,
    timeout_s: float,
    begun_at: float | None = None,
    hint: str = "",
) -> dict[int, Member]:
    """Wait until all processes have come, and return who they are.

    Args:
        board: Where they say that they are there.
        rank: This process.
        size: How many there are.
        timeout_s: How long to wait for them.
        begun_at: Since when, as `time.monotonic` has it; None: since now.
        hint: What else the message should say if they do not come.

    Raises:
        DistributedError: Some did not come in time, or one was started twice.
    """
    own = this_member(rank)
    try:
        if not board.claim(_key(rank), member_to_json(own)):
            raise DistributedError(
                f"there is a rank {rank} already; each process needs a RANK of its own, from 0 to "
                f"{size - 1}"
            )
        begun_at = time.monotonic() if begun_at is None else begun_at
        _await_all(board, size, timeout_s, begun_at, hint)
        texts = [board.read(_key(other)) or "" for other in range(size)]
    except StoreGoneError as error:
        raise DistributedError(
            f"rank 0 ended while rank {rank} waited for the others to come ({error}); what rank 0 "
            f"wrote last tells why"
        ) from error
    return {other: member_from_json(text) for other, text in enumerate(texts)}


def introduce(
    board: Board,
    members: dict[int, Member],
    rank: int,
    found: Sequence[Connection],
    timeout_s: float,
) -> tuple[Peers, list[Connection]]:
    """Return the others with the connections that lead to them, and all that lead to one of them.

    Args:
        board: Every process must get here.
        members: All processes.
        rank: This one.
        found: Connections that were made just now, maybe some that have nothing to do with the run.
        timeout_s: How long to wait for the others.

    Raises:
        StoreGoneError: The store ended.
        TimeoutError: A process did not come.
    """
    led = lead_to(board, "ends", list(members), rank, found, timeout_s)
    return Peers(rank, len(members), members, led), list(led.values())


def lead_to(
    board: Board,
    name: str,
    ranks: Sequence[int],
    rank: int,
    found: Sequence[Connection],
    timeout_s: float,
) -> dict[int, Connection]:
    """Return which of these connections leads to which of the processes `ranks`.

    Args:
        board: All of them must get here.
        name: Of this question; each has its own.
        ranks: The processes that ask it.
        rank: This one.
        found: Connections that were made just now.
        timeout_s: How long to wait for the others.

    Raises:
        StoreGoneError: The store ended.
        TimeoutError: A process did not come.
    """
    end = time.monotonic() + timeout_s
    board.put(f"{name}/{rank}", json.dumps([one.ends for one in found]))
    while not board.has(f"{name}/{other}" for other in ranks):
        if time.monotonic() > end:
            raise TimeoutError(f"not all processes were there within {timeout_s:g} s")
        time.sleep(_PAUSE_S)
    others = {other: _ends(board, f"{name}/{other}") for other in ranks if other != rank}
    return by_rank(found, others)


def _await_all(board: Board, size: int, timeout_s: float, begun_at: float, hint: str) -> None:
    end = begun_at + timeout_s
    while not board.has(_key(other) for other in range(size)):
        reason = board.read(_GIVEN_UP)
        if reason is None and time.monotonic() > end:
            missing = [other for other in range(size) if not board.has([_key(other)])]
            reason = _not_come(missing, size, timeout_s) + (f"; {hint}" if hint else "")
            board.put(_GIVEN_UP, reason)
            time.sleep(_LINGER_S)
        if reason is not None:
            raise DistributedError(reason)
        time.sleep(_PAUSE_S)


def _not_come(missing: Sequence[int], size: int, timeout_s: float) -> str:
    ranks = ", ".join(map(str, missing))
    return (
        f"{'rank' if len(missing) == 1 else 'ranks'} {ranks} of {size} did not come within "
        f"{timeout_s:g} s. Start all {size} processes, or as many as there should be "
        f"(WORLD_SIZE); if they run, look at what they wrote, and whether their hosts reach each "
        f"other"
    )


def _ends(board: Board, key: str) -> list[Ends]:
    pairs = json.loads(board.read(key) or "[]")
    return [((here[0], here[1]), (there[0], there[1])) for here, there in pairs]


def _key(rank: int) -> str:
    return f"member/{rank}"
