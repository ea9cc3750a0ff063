"""Who is still there after a collective failed, asked through the store."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass

from torchkiln.distributed._peers import Peers
from torchkiln.distributed._store import Board, StoreGoneError

# How long the others have to say that they are there. Those that wait in the same collective notice
# within milliseconds that it failed.
_ANSWER_S = 2.0
_PAUSE_S = 0.02
# How long the store itself may need for an answer, after a failure.
_STORE_S = 5.0
# How long the process in which the store lives lets slower ones finish their questions.
_LINGER_S = 0.5
VERDICT = "verdict"


@dataclass(frozen=True, slots=True)
class Failure:
    """What a process knows itself when it lost the others.

    Args:
        place: Where it was: "update 12".
        cause: What the library said.
        waited_s: How long it waited in vain; None: it did not wait, a connection broke.
        gone: Ranks that are known to have ended or to be out of reach.
    """

    place: str
    cause: str
    waited_s: float | None
    gone: frozenset[int]


@dataclass(frozen=True, slots=True)
class RollCall:
    """Who answered.

    Args:
        places: Where those are that answered.
        missing: Ranks that did not.
        given_up_by: What others said of this process before, if they ended the run without it.
    """

    places: dict[int, str]
    missing: frozenset[int]
    given_up_at: str = ""


def call_roll(board: Board, peers: Peers, failure: Failure) -> str:
    """Tell the others that this process is there, hear who else is, and say what happened.

    Connections of this process are shut, so that all who wait for it get here, too.
    """
    if 0 in peers.gone(trust_connections=False) and store_is_in_first():
        # torch would write pages about a store that does not answer.
        peers.shut_connections()
        return _store_gone(peers, failure)
    board.patience_s = min(board.patience_s, _STORE_S)
    places: dict[int, str] = {}
    try:
        board.put(f"roll/{peers.rank}", failure.place)
        earlier = board.read(VERDICT)
        peers.shut_connections()
        if earlier is not None:
            return _explain(peers, failure, _from_verdict(earlier, peers.rank))
        _hear_answers(board, peers, places)
        missing = frozenset(range(peers.size)) - places.keys()
        verdict = {"missing": sorted(missing & failure.gone or missing), "place": failure.place}
        board.put(VERDICT, json.dumps(verdict))
    except StoreGoneError:
        peers.shut_connections()
        if 0 not in places:
            return _store_gone(peers, failure)
        missing = frozenset(range(peers.size)) - places.keys()
    if peers.rank == 0 and store_is_in_first():
        time.sleep(_LINGER_S)
    return _explain(peers, failure, RollCall(places, missing))


def store_is_in_first() -> bool:
    """Whether the store ends with rank 0; torchrun keeps it in a process of its own."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"


def _hear_answers(board: Board, peers: Peers, places: dict[int, str]) -> None:
    """Collect who answers, until all have, or did not in time.

    A closed connection is no reason not to wait: gloo closes those of a process that is about to
    answer, too. One that is seen to have ended will not answer.
    """
    end = time.monotonic() + _ANSWER_S
    while True:
        ended = peers.gone(trust_connections=False)
        for rank in set(range(peers.size)) - places.keys():
            place = board.read(f"roll/{rank}")
            if place is not None:
                places[rank] = place
        if len(places.keys() | ended) == peers.size or time.monotonic() > end:
            return
        time.sleep(_PAUSE_S)


def _from_verdict(text: str, rank: int) -> RollCall:
    verdict = json.loads(text)
    missing = frozenset(verdict["missing"])
    if rank in missing:
        return RollCall({}, frozenset(), verdict["place"])
    return RollCall({}, missing)


# In the place of a process whose own error ended its call.
ENDED_BY = ", ended by "


def _explain(peers: Peers, failure: Failure, roll: RollCall) -> str:
    at = f"while rank {peers.rank} was at {failure.place}"
    if roll.given_up_at:
        return (
            f"the other processes gave up on rank {peers.rank}, this process, when they were at "
            f"{roll.given_up_at}: it did not answer in time. If it only needs longer, raise "
            f"collective_timeout_s on all of them"
        )
    gone = roll.missing & (failure.gone | peers.gone(trust_connections=False))
    if gone:
        return (
            f"{peers.named(gone)} {_were(gone)} lost {at}: the process ended, was killed, or its "
            f"host cannot be reached. What it wrote last tells why; torchrun's --max-restarts "
            f"starts all processes again"
        )
    if stopped := roll.missing & peers.stopped():
        return _stopped(peers, failure, stopped)
    if roll.missing:
        return (
            f"{peers.named(roll.missing)} did not answer{_waited(failure)} {at}: it hangs, its "
            f"host cannot be reached, or it only needs longer; then raise collective_timeout_s"
        )
    if len(set(roll.places.values())) > 1:
        where = ", ".join(f"rank {rank} at {roll.places[rank]}" for rank in sorted(roll.places))
        if any(ENDED_BY in place for place in roll.places.values()):
            return f"an error at one of the processes ended the call of all: {where}"
        return (
            f"the processes do not do the same: {where}. Every rank must make the same calls in "
            f"the same order ({failure.cause})"
        )
    return (
        f"the processes lost each other at {failure.place}, although all {peers.size} of them run: "
        f"{failure.cause}. Look at the network between them, and start all of them again"
    )


def _stopped(peers: Peers, failure: Failure, ranks: frozenset[int]) -> str:
    return (
        f"{peers.named(ranks)} did not answer{_waited(failure)} while rank {peers.rank} was at "
        f"{failure.place}: it is stopped, as by Ctrl-Z or SIGSTOP. Start all processes again; kill "
        f"-CONT {peers.pids(ranks)} lets it go on, so that it notices that the others have left"
    )


def _store_gone(peers: Peers, failure: Failure) -> str:
    at = f"while rank {peers.rank} was at {failure.place}"
    if store_is_in_first() and 0 in peers.stopped():
        return _stopped(peers, failure, frozenset({0}))
    if store_is_in_first():
        return (
            f"{peers.named([0])} was lost {at}, and with it the store over which the others could "
            f"tell who else is: the process ended, was killed, or its host cannot be reached. What "
            f"it wrote last tells why"
        )
    address = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
    return (
        f"torchrun's own process at {address} was lost {at}: it ended, or its host cannot be "
        f"reached from here, so the ranks on that host are lost, too. Look at the network, and at "
        f"what that torchrun wrote last"
    )


def _were(ranks: frozenset[int]) -> str:
    return "was" if len(ranks) == 1 else "were"


def _waited(failure: Failure) -> str:
    return "" if failure.waited_s is None else f" within {failure.waited_s:g} s"
