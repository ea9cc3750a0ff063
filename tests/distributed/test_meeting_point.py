"""Where processes meet, and over which network."""

from __future__ import annotations

import os
import socket
from types import SimpleNamespace

import psutil
import pytest

from torchkiln.core import DistributedError
from torchkiln.core._launch import Launch
from torchkiln.distributed._meeting_point import MeetingPoint, choose_interface, meeting_point

ONE_HOST = Launch("Open MPI", 1, 2, 1, 2, "job 7")
TWO_HOSTS = Launch("SLURM", 1, 4, 1, 2, "7.0")


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch):
    for name in ("MASTER_ADDR", "MASTER_PORT", "GLOO_SOCKET_IFNAME"):
        monkeypatch.delenv(name, raising=False)


def test_on_one_host_the_name_of_the_job_gives_the_port():
    point = meeting_point(ONE_HOST)
    assert point.host == "127.0.0.1"
    assert 15_000 <= point.port < 30_000
    assert meeting_point(Launch("Open MPI", 0, 2, 0, 2, "job 7")) == point
    assert meeting_point(Launch("Open MPI", 0, 2, 0, 2, "job 8")) != point


def test_what_the_user_set_counts(monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "kiln")
    monkeypatch.setenv("MASTER_PORT", "1234")
    assert str(meeting_point(ONE_HOST)) == "kiln:1234"
    assert str(meeting_point(TWO_HOSTS)) == "kiln:1234"


@pytest.mark.parametrize(
    ("launch", "words"),
    [
        (TWO_HOSTS, r"MASTER_ADDR is not set.*scontrol show hostnames"),
        (Launch("Open MPI", 0, 4, 0, 2, "7"), "mpirun -x MASTER_ADDR=HOST"),
        (Launch("torchrun", 0, 4, None, None), "on several hosts"),
    ],
)
def test_several_hosts_need_an_address(launch, words):
    with pytest.raises(DistributedError, match=words):
        meeting_point(launch)


@pytest.mark.parametrize("port", ["", "0", "70000", "http"])
def test_ports_that_cannot_be_are_refused(monkeypatch, port):
    monkeypatch.setenv("MASTER_PORT", port)
    with pytest.raises(DistributedError, match="MASTER_PORT"):
        meeting_point(Launch("torchrun", 0, 2, 0, 2))


def test_the_loopback_leads_to_this_host():
    loopback = next(
        name
        for name, entries in psutil.net_if_addrs().items()
        if any(entry.address == "127.0.0.1" for entry in entries)
    )
    assert choose_interface(MeetingPoint("127.0.0.1", 1), ONE_HOST) == loopback
    assert os.environ.pop("GLOO_SOCKET_IFNAME") == loopback
    assert choose_interface(MeetingPoint("127.0.1.1", 1), ONE_HOST) == loopback


def test_an_interface_that_the_user_chose_counts(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")
    assert choose_interface(MeetingPoint("127.0.0.1", 1), ONE_HOST) == "eth7"


def fake_networks(monkeypatch, *names):
    entry = {"lo": "127.0.0.1"} | {name: f"192.0.2.{i}" for i, name in enumerate(names, 1)}
    addresses = {
        name: [SimpleNamespace(family=socket.AF_INET, address=address)]
        for name, address in entry.items()
    }
    states = {name: SimpleNamespace(isup=name != "down0") for name in entry}
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: addresses)
    monkeypatch.setattr(psutil, "net_if_stats", lambda: states)


def test_a_loopback_does_not_lead_to_other_hosts(monkeypatch):
    """On Debian the name of a host is 127.0.1.1 to itself."""
    fake_networks(monkeypatch, "eth0", "down0")
    assert choose_interface(MeetingPoint("127.0.1.1", 1), TWO_HOSTS) == "eth0"


def test_of_several_networks_the_user_must_choose(monkeypatch):
    fake_networks(monkeypatch, "eth0", "eth1")
    with pytest.raises(DistributedError, match=r"eth0, eth1.*GLOO_SOCKET_IFNAME"):
        choose_interface(MeetingPoint("127.0.1.1", 1), TWO_HOSTS)


def test_a_host_that_nobody_knows_is_named():
    with pytest.raises(DistributedError, match=r"no host called 'nowhere.invalid'"):
        MeetingPoint("nowhere.invalid", 1).addresses()
