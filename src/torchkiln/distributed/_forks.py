"""Connections of a run that forked children must not keep open.

A loader's worker is a copy of its parent, with all its connections. While it lives, the other
processes of the run do not see that its parent was killed. So the first thing that a child does is
to let go of them.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterable

from torchkiln.distributed._connections import Connection, addresses_of, sockets

_inodes: set[int] = set()
_stores: set[tuple[str, int]] = set()
_is_registered = False


def let_go_in_children(
    connections: Iterable[Connection] = (), stores: Iterable[tuple[str, int]] = ()
) -> None:
    """Close these connections, and all to and from these stores, in every process that is forked.

    Args:
        connections: Between processes of the run.
        stores: Address and port. Connections to a store come and go, so they are looked for when a
            child is forked.
    """
    global _is_registered
    _inodes.update(connection.inode for connection in connections)
    _stores.update(stores)
    if not _is_registered:
        _is_registered = True
        os.register_at_fork(after_in_child=_let_go)


def _let_go() -> None:
    with contextlib.suppress(OSError):
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in _to_close():
            # In its place, so that torch's own objects in this copy never close something else.
            os.dup2(nothing, descriptor, inheritable=False)
        os.close(nothing)


def _to_close() -> list[int]:
    ports = {port for _, port in _stores}
    found, at_store_ports = [], []
    serves = False
    for descriptor, inode in sockets():
        if inode in _inodes:
            found.append(descriptor)
            continue
        here, there = addresses_of(descriptor)
        if there in _stores:
            found.append(descriptor)
        elif here is not None and here[1] in ports:
            at_store_ports.append(descriptor)
            serves = serves or (there is None and _listens(descriptor))
    # A connection elsewhere may leave from a port of that number, but not where the store is.
    return found + (at_store_ports if serves else [])


def _listens(descriptor: int) -> bool:
    with socket.socket(fileno=os.dup(descriptor)) as held:
        return bool(held.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
