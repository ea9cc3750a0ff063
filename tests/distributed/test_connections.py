"""Connections are told apart, and it is noticed when they close."""

from __future__ import annotations

import socket
import time

import pytest

from torchkiln.distributed._connections import by_rank, connections


@pytest.fixture
def pair():
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        served, _ = server.accept()
        with client, served:
            yield client, served


def connection_of(one):
    return next(found for found in connections() if found.descriptor == one.fileno())


def closed_soon(connection):
    end = time.monotonic() + 5
    while connection.is_open() and time.monotonic() < end:
        time.sleep(0.01)
    return not connection.is_open()


def test_both_sides_know_the_same_ends(pair):
    client, served = map(connection_of, pair)
    assert client.ends == served.ends[::-1]
    assert client.is_open()
    assert by_rank([client, served], {3: [served.ends]}) == {3: client}


def test_a_connection_that_leads_elsewhere_belongs_to_nobody(pair):
    assert by_rank([connection_of(pair[0])], {1: [(("127.0.0.1", 1), ("127.0.0.1", 2))]}) == {}


def test_the_other_side_closes(pair):
    connection = connection_of(pair[0])
    pair[1].close()
    assert closed_soon(connection)


def test_a_later_file_of_the_same_number_is_not_the_connection(pair):
    client = pair[0]
    connection = connection_of(client)
    number = client.fileno()
    client.close()
    with socket.socket() as other:
        assert other.fileno() == number
        assert not connection.is_open()
        connection.shut()
        connection.notice_silence(10)
        assert other.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 0


def test_shutting_tells_the_other_side(pair):
    connection_of(pair[0]).shut()
    assert pair[1].recv(1) == b""


def test_a_silent_host_will_be_noticed(pair):
    connection_of(pair[0]).notice_silence(20)
    assert pair[0].getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert pair[0].getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 5


def test_sockets_that_are_no_connections_are_left_out(tmp_path):
    with socket.socket(socket.AF_UNIX) as local, socket.create_server(("127.0.0.1", 0)) as server:
        local.bind(str(tmp_path / "socket"))
        numbers = {one.descriptor for one in connections()}
        assert not numbers & {local.fileno(), server.fileno()}
