"""Forked children do not hide that their parent was killed."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

import pytest
from launching import start_bare

from torchkiln.distributed import _forks
from torchkiln.distributed._connections import connections
from torchkiln.distributed._forks import let_go_in_children

WITH_CHILDREN = Path(__file__).with_name("_with_children.py")


@pytest.mark.parametrize("victim", [1, pytest.param(0, marks=pytest.mark.slow)])
def test_a_rank_that_was_killed_is_noticed_although_its_workers_live(victim):
    with start_bare(WITH_CHILDREN, str(victim), may_leave=True) as running:
        outcome = running[1 - victim].wait(90)
    found = re.search(r"^after (.*) s: (.*)$", outcome.stdout, re.MULTILINE)
    assert found is not None, outcome.output
    assert float(found[1]) < 5
    assert re.match(rf"rank {victim} \(process \d+ on .*\) was lost while rank", found[2])
    assert "update 3" in found[2]


@pytest.fixture
def _nothing_recorded(monkeypatch):
    monkeypatch.setattr(_forks, "_inodes", set())
    monkeypatch.setattr(_forks, "_stores", set())


def in_child(work) -> int:
    """Return what a forked child returns from `work`."""
    child = os.fork()
    if not child:
        try:
            os._exit(work())
        except BaseException:
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def is_there(one: socket.socket) -> bool:
    """Whether the number of a socket still leads to one."""
    return os.readlink(f"/proc/self/fd/{one.fileno()}").startswith("socket:")


@pytest.mark.usefixtures("_nothing_recorded")
def test_only_what_belongs_to_the_run_is_let_go_of():
    with (
        socket.create_server(("127.0.0.1", 0)) as store,
        socket.create_server(("127.0.0.1", 0)) as other_server,
    ):
        to_store = socket.create_connection(store.getsockname())
        from_client, _ = store.accept()
        peer = socket.create_connection(other_server.getsockname())
        own = socket.create_connection(other_server.getsockname())
        with to_store, from_client, peer, own:
            group = [one for one in connections() if one.descriptor == peer.fileno()]
            let_go_in_children(group, [store.getsockname()])
            gone, kept = (store, to_store, from_client, peer), (own, other_server)

            def look() -> int:
                return sum(map(is_there, gone)) + 10 * sum(map(is_there, kept))

            assert in_child(look) == 20
            assert all(map(is_there, (*gone, *kept)))  # in this process nothing changed


@pytest.mark.usefixtures("_nothing_recorded")
def test_a_connection_that_leaves_from_the_port_of_a_store_elsewhere_is_kept():
    with socket.create_server(("127.0.0.1", 0)) as server:
        own = socket.create_connection(server.getsockname())
        port = own.getsockname()[1]
        with own:
            let_go_in_children(stores=[("192.0.2.1", port)])
            assert in_child(lambda: int(is_there(own))) == 1
