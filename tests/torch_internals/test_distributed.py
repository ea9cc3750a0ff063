"""The store of a run is found, and a second connection to it is one of its own."""

from __future__ import annotations

import datetime
import socket
import threading
import time

import pytest
import torch.distributed as dist
from launching import free_port

from torchkiln.torch_internals._distributed import (
    default_store,
    open_store,
    store_address,
    within_attempt,
)


@pytest.fixture
def port():
    port = free_port()
    limit = datetime.timedelta(seconds=20)
    store = open_store("127.0.0.1", port, serves=True, timeout=limit)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield port
    dist.destroy_process_group()


def test_a_store_opens_without_waiting_for_others_and_is_found_again(port):
    assert store_address() == ("127.0.0.1", port)
    limit = datetime.timedelta(seconds=20)
    first, second = (open_store("127.0.0.1", port, serves=False, timeout=limit) for _ in range(2))
    first.set("a", "1")
    assert second.get("a") == b"1"


def test_a_second_connection_to_the_store_does_not_wait_for_the_first(port):
    first, second = default_store().clone(), default_store().clone()
    waiting = threading.Thread(target=first.wait, args=(["late"],))
    waiting.start()
    time.sleep(0.2)
    second.set("here", "yes")  # while the first one waits
    assert second.check(["here"])
    assert not second.check(["late"])
    assert waiting.is_alive()
    second.set("late", "now")
    waiting.join(10)
    assert not waiting.is_alive()
    assert default_store().get("late") == b"now"


def test_comparing_and_setting_tells_who_was_first(port):
    first, second = default_store().clone(), default_store().clone()
    assert first.compare_set("claimed", "", "by first") == b"by first"
    assert second.compare_set("claimed", "", "by second") == b"by first"


def test_attempts_do_not_see_what_others_left(port):
    first, second = (within_attempt(default_store(), number).clone() for number in ("0", "1"))
    first.set("rank 0", "here")
    assert first.check(["rank 0"])
    assert not second.check(["rank 0"])


def test_a_port_in_use_is_told_by_its_name():
    limit = datetime.timedelta(seconds=5)
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        pytest.raises(RuntimeError, match="EADDRINUSE"),
    ):
        open_store("127.0.0.1", server.getsockname()[1], serves=True, timeout=limit)
