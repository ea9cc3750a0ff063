"""How a process joins the others of its run, and how it leaves them."""

from __future__ import annotations

import datetime
import os
import socket
import time
from typing import Any

import torch
import torch.distributed as dist

from torchkiln.core import DistributedError
from torchkiln.core._launch import Launch, launched
from torchkiln.distributed._at_exit import at_exit
from torchkiln.distributed._connections import connections
from torchkiln.distributed._dividing import divide_threads
from torchkiln.distributed._forks import let_go_in_children
from torchkiln.distributed._introduction import arrive, introduce
from torchkiln.distributed._meeting_point import MeetingPoint, choose_interface, meeting_point
from torchkiln.distributed._members import Member
from torchkiln.distributed._peers import Peers
from torchkiln.distributed._roll_call import store_is_in_first
from torchkiln.distributed._store import Board, StoreGoneError, answer_soon
from torchkiln.distributed._world import World
from torchkiln.torch_internals._distributed import open_store, store_address, within_attempt

_ALONE = World(0, 1, 0, 1)
_has_joined = False
# The store ends with rank 0, so it leaves last; for this long it waits for the others.
_LAST_S = 3.0
_PAUSE_S = 0.02


def join(timeout_s: float) -> World:
    """Join the processes that were started together, and return this one's place among them.

    Raises:
        DistributedError: They do not find each other within the time.
    """
    global _has_joined
    if dist.is_initialized():
        return _adopt(timeout_s)
    launch = launched()
    if launch is None or launch.size == 1:
        return _ALONE
    _require_first_time()
    point = meeting_point(launch)
    begun_at = time.monotonic()
    interface = choose_interface(point, launch)
    store = _open_store(point, launch, timeout_s)
    board = Board("torchkiln/world", store)
    hint = "" if "TORCHELASTIC_RUN_ID" in os.environ else launch.how_to_be_alone
    members = arrive(board, launch.rank, launch.size, timeout_s, begun_at, hint)
    peers = _make_group(store, launch, board, members, timeout_s, interface)
    _has_joined = True
    at_exit(lambda: _leave(board, peers))
    divide_threads(launch.rank, members)
    return _world(launch, members)


def _require_first_time() -> None:
    """Refuse to join a second time: what the others said the first time is still at the store."""
    if _has_joined:
        raise DistributedError(
            "this process has left the others (torch.distributed.destroy_process_group was called) "
            "and cannot join them again; leave that call out, Torchkiln makes it at the end of the "
            "program, or call torch.distributed.init_process_group(...) on all ranks before start()"
        )


def _adopt(timeout_s: float) -> World:
    """Return the place of this process in a group that somebody else made.

    If the environment says it, nobody needs to be asked. How many threads there are is left to
    whoever made the group.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    if size == 1:
        return _ALONE
    address = store_address()
    if address is not None:
        let_go_in_children(stores=_addresses(MeetingPoint(*address)))
    launch = launched()
    if launch is not None and (launch.rank, launch.size) == (rank, size):
        local_rank, local_size = launch.local_rank, launch.local_size
        if local_rank is not None and local_size is not None:
            return World(rank, size, local_rank, local_size)
    try:
        board = Board("torchkiln/world")
    except StoreGoneError as error:
        raise DistributedError(
            f"the store of the process group cannot be reached ({error}); start all processes again"
        ) from error
    members = arrive(board, rank, size, timeout_s)
    return _world(Launch("the process group", rank, size, None, None), members)


def _open_store(point: MeetingPoint, launch: Launch, timeout_s: float) -> Any:
    serves = launch.rank == 0 and store_is_in_first()
    limit = datetime.timedelta(seconds=timeout_s)
    if not serves:
        _await_store(point, launch, timeout_s)
    try:
        store = answer_soon(
            lambda: open_store(point.host, point.port, serves=serves, timeout=limit), timeout_s
        )
    except StoreGoneError as error:
        if "EADDRINUSE" in str(error):
            raise DistributedError(
                f"port {point.port} on this host is in use, by another run or another program; set "
                f"MASTER_PORT to a free one, the same for all processes"
            ) from error
        raise DistributedError(
            f"there is no store of this run at {point} ({_first_line(error)}). Rank 0 must run on "
            f"the host that MASTER_ADDR names, and no other program may use MASTER_PORT there"
        ) from error
    let_go_in_children(stores=_addresses(point))
    # torchrun starts processes again after a failure, and keeps its store with what was left there.
    return within_attempt(store, os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def _await_store(point: MeetingPoint, launch: Launch, timeout_s: float) -> None:
    """Wait until somebody answers at the meeting point; torch itself would not say why not."""
    end = time.monotonic() + timeout_s
    point.addresses()
    while True:
        left = end - time.monotonic()
        try:
            with socket.create_connection((point.host, point.port), timeout=max(0.1, left)):
                return
        except OSError as error:
            if left <= 0:
                raise DistributedError(
                    f"nobody answers at {point} within {timeout_s:g} s ({error}): rank 0 was not "
                    f"started there, or this host cannot reach it. Look at rank 0, at MASTER_ADDR "
                    f"and MASTER_PORT, which must be the same for all processes, and at firewalls; "
                    f"this is process {launch.rank} of {launch.size}: {launch.how_to_be_alone}"
                ) from error
        time.sleep(0.1)


def _make_group(
    store: Any,
    launch: Launch,
    board: Board,
    members: dict[int, Member],
    timeout_s: float,
    interface: str | None,
) -> Peers:
    before = {connection.inode for connection in connections()}
    has_nccl = torch.cuda.is_available() and dist.is_nccl_available()
    try:
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if has_nccl else "gloo",
            store=store,
            rank=launch.rank,
            world_size=launch.size,
            timeout=datetime.timedelta(seconds=timeout_s),
        )
        found = [connection for connection in connections() if connection.inode not in before]
        peers, own = introduce(board, members, launch.rank, found, timeout_s)
    except (RuntimeError, TimeoutError, StoreGoneError) as error:
        used = interface or os.environ.get("GLOO_SOCKET_IFNAME") or "that gloo chose"
        raise DistributedError(
            f"rank {launch.rank} cannot connect to the others over the network interface {used} "
            f"({_first_line(error)}); set GLOO_SOCKET_IFNAME to the one that leads to their hosts"
        ) from error
    let_go_in_children(own)
    return peers


def _world(launch: Launch, members: dict[int, Member]) -> World:
    place = members[launch.rank].place
    here = sorted(rank for rank, member in members.items() if member.place == place)
    if launch.local_rank is not None and launch.local_size is not None:
        return World(launch.rank, launch.size, launch.local_rank, launch.local_size)
    return World(launch.rank, launch.size, here.index(launch.rank), len(here))


def _addresses(point: MeetingPoint) -> list[tuple[str, int]]:
    return [(address, point.port) for address in point.addresses()]


def _leave(board: Board, peers: Peers) -> None:
    """Say goodbye; the process in which the store lives waits for the others to do so."""
    board.patience_s = _LAST_S
    keeps_store = peers.rank == 0 and store_is_in_first()
    try:
        if store_is_in_first() and 0 in peers.gone():
            raise StoreGoneError
        board.put(f"bye/{peers.rank}", "")
        end = time.monotonic() + _LAST_S
        while keeps_store and time.monotonic() < end:
            gone = peers.gone() | peers.stopped()
            if board.has(f"bye/{rank}" for rank in range(peers.size) if rank not in gone):
                break
            time.sleep(_PAUSE_S)
    except StoreGoneError:
        pass  # the others have left
    if dist.is_initialized():
        dist.destroy_process_group()


def _first_line(error: Exception) -> str:
    return str(error).split("] ", 1)[-1].splitlines()[0]
