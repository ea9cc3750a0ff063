"""Two hosts, as network namespaces with a cable between them, and torchrun's own rendezvous."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from launching import Running, start_torchrun

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

ACROSS = Path(__file__).with_name("_across_hosts.py")
# Of the cable alone, which leads nowhere else.
ADDRESSES = ("10.77.0.1", "10.77.0.2")


@dataclass(frozen=True)
class Host:
    name: str
    address: str
    interface: str

    def link(self, state: str) -> None:
        ip("-n", self.name, "link", "set", self.interface, state)


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=20)


@pytest.fixture
def hosts() -> Iterator[tuple[Host, Host]]:
    if shutil.which("ip") is None:
        pytest.skip("there is no ip here; Debian has it in iproute2")
    mark = f"tk{os.getpid()}"
    first, second = (
        Host(f"{mark}{letter}", address, f"cable{letter}")
        for letter, address in zip("ab", ADDRESSES, strict=True)
    )
    try:
        try:
            for host in (first, second):
                ip("netns", "add", host.name)
            ip(
                *("link", "add", first.interface, "netns", first.name, "type", "veth"),
                *("peer", "name", second.interface, "netns", second.name),
            )
        except subprocess.CalledProcessError as error:
            pytest.skip(f"network namespaces are refused here: {error.stderr.strip()}")
        for host in (first, second):
            ip("-n", host.name, "addr", "add", f"{host.address}/24", "dev", host.interface)
            ip("-n", host.name, "link", "set", "lo", "up")
            host.link("up")
        yield first, second
    finally:
        for host in (first, second):
            subprocess.run(["ip", "netns", "del", host.name], capture_output=True, check=False)


@contextlib.contextmanager
def started(
    hosts: tuple[Host, Host], timeout_s: float, updates: int
) -> Iterator[tuple[Running, Running]]:
    """Start one torchrun on each host, with one process."""
    with contextlib.ExitStack() as stack:
        yield tuple(
            stack.enter_context(
                start_torchrun(
                    ACROSS,
                    str(timeout_s),
                    str(updates),
                    ranks=1,
                    options=[
                        *("--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-id", "two"),
                        *("--rdzv-endpoint", f"{hosts[0].address}:29411"),
                        *("--local-addr", host.address),
                        # Else each asks what its name stands for, and both have the same name.
                        *("--rdzv-conf", f"is_host={int(host is hosts[0])}"),
                    ],
                    prefix=["ip", "netns", "exec", host.name],
                )
            )
            for host in hosts
        )


def failure_of(running: Running, timeout_s: float) -> str:
    return running.wait_for(r"rank (\d) failed: (.*)", timeout_s)[0]


def test_two_hosts_train_together(hosts):
    with started(hosts, timeout_s=30, updates=8) as both:
        outcomes = [one.wait(90).ok() for one in both]
    ranks = set()
    for host, outcome in zip(hosts, outcomes, strict=True):
        found = re.search(r"rank (\d) World\(.*\) over (\w+)\n", outcome.stdout)
        assert found is not None
        assert "size=2, local_rank=0, local_size=1)" in found[0]
        assert found[2] == host.interface, "the one that leads to the other host"
        ranks.add(found[1])
    assert ranks == {"0", "1"}


def test_a_cable_that_is_plugged_in_again_in_time_is_no_failure(hosts):
    with started(hosts, timeout_s=60, updates=60) as both:
        both[0].wait_for("made update 10", 90)
        hosts[1].link("down")
        time.sleep(5)
        reached = both[0].output.count("made update")
        assert reached < 60, "the cut came too late to be one"
        hosts[1].link("up")
        for one in both:
            one.wait_for("is done", 90)


def test_a_host_that_is_cut_off_is_named(hosts):
    with started(hosts, timeout_s=6, updates=1000) as both:
        for one in both:
            one.wait_for("made update 10", 90)
        cut_at = time.monotonic()
        hosts[1].link("down")
        texts = [failure_of(one, 40) for one in both]
        assert time.monotonic() - cut_at < 25
    # Whose torchrun was first has the store; rank 0 may be on either host.
    names = sorted(texts, key=lambda text: "torchrun's own process" in text)
    assert re.search(
        r"rank \d failed: rank \d \(process \d+ on \S+\) did not answer within 6 s", names[0]
    )
    assert "at update" in names[0]
    assert re.search(r"torchrun's own process at 10.77.0.\d:\d+ was lost", names[1])
