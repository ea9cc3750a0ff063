"""What torch.distributed keeps about the processes of a run."""

from __future__ import annotations

import datetime
from typing import Any

import torch.distributed
import torch.distributed.distributed_c10d as c10d

# Its stores are documented there, but its stubs do not know.
_dist: Any = torch.distributed


def open_store(host: str, port: int, *, serves: bool, timeout: datetime.timedelta) -> Any:
    """Return a connection to a store, which begins in this process if it serves.

    torch: what `init_process_group` does for `env://`, but without waiting for all processes.
    for: the message about processes that do not come says which ones.
    """
    return _dist.TCPStore(
        host, port, None, serves, timeout, wait_for_workers=False, multi_tenant=True
    )


def within_attempt(store: Any, attempt: str) -> Any:
    """Return a part of a store that only the processes of one attempt use.

    torch: what `init_process_group` does for `env://` under torchrun.
    for: processes that torchrun started again do not find what those before them left.
    """
    return _dist.PrefixStore(f"/worker/attempt_{attempt}", store)


def default_store() -> Any:
    """Return the store over which the processes of this run found each other.

    torch: `init_process_group` keeps it. Its `clone()`, which torch's stubs do not know, has a
        connection and a lock of its own.
    for: processes tell each other who is still there after a collective failed, and wait for
        each other longer than a collective would, while other threads may use the store.
    """
    return c10d._get_default_store()


def store_address() -> tuple[str, int] | None:
    """Return host and port of that store; None if it is no server.

    torch: a `PrefixStore` says what it stands before, also if that is another one.
    for: forked children let go of connections to the store of a group that somebody else made.
    """
    store = default_store()
    while isinstance(store, _dist.PrefixStore):
        store = store.underlying_store
    return (store.host, store.port) if isinstance(store, _dist.TCPStore) else None
