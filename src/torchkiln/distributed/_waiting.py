"""Waiting at the store for others that may need long, as long as they live."""

from __future__ import annotations

import time
from collections.abc import Mapping

from torchkiln.distributed._peers import Peers
from torchkiln.distributed._roll_call import VERDICT
from torchkiln.distributed._store import Board

_FIRST_PAUSE_S = 0.001
_LONGEST_PAUSE_S = 0.1
# How often to look whether those who are missing still live.
_LOOK_S = 0.5


class WaitedInVainError(Exception):
    """Somebody will not come.

    Args:
        gone: Ranks that ended or cannot be reached.
        stopped: Whether it was in vain because one is stopped.
    """

    def __init__(self, gone: set[int], stopped: bool = False) -> None:
        super().__init__("a process that others wait for will not come")
        self.gone = frozenset(gone)
        self.stopped = stopped


def wait_for(board: Board, peers: Peers, keys: Mapping[int, str], stopped_s: float) -> None:
    """Return when all these ranks have put their keys onto the board, however long that takes.

    Args:
        board: Where they leave them.
        peers: Who they are.
        keys: What is waited for, by rank.
        stopped_s: How long one of them may be stopped.

    Raises:
        WaitedInVainError: One of them ended, or is stopped for too long, or others gave up already.
        StoreGoneError: The store ended.
    """
    pause, last_look, running_at = _FIRST_PAUSE_S, time.monotonic(), time.monotonic()
    while not board.has(keys.values()):
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_S)
        now = time.monotonic()
        if now - last_look < _LOOK_S:
            continue
        last_look = now
        if board.has([VERDICT]):
            raise WaitedInVainError(set())
        # Before the board is asked: one that comes and ends is not missed.
        gone, stopped = peers.gone(), peers.stopped()
        missing = {rank for rank, key in keys.items() if not board.has([key])}
        if gone & missing:
            raise WaitedInVainError(gone & missing)
        if not stopped & missing:
            running_at = now
        elif now - running_at > stopped_s:
            raise WaitedInVainError(set(), stopped=True)
