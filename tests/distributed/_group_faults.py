"""One rank gets into trouble in the middle of a run; the others say what they notice, and when.

python _group_faults.py FAULT VICTIM TIMEOUT
"""

from __future__ import annotations

import os
import re
import signal
import sys
import time

import pytest
import torch

from torchkiln.core import DistributedError
from torchkiln.distributed import Group, group_of, start


def get_into_trouble(fault: str, group: Group) -> None:
    time.sleep(0.5)  # the others have left the meeting, and wait in what comes next
    match fault:
        case "killed" | "killed in a meeting" | "killed at work" | "killed before a message":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stopped" | "stopped at work" | "stopped before a message":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "elsewhere":
            group.place = "validation"
            group.gather("other words")
        case "abandons before a message":
            group.abandon(ValueError("bad data"))
            with pytest.raises(DistributedError, match=r"at update 12 because of ValueError: bad"):
                group.meet("again")
            sys.exit(0)
        case "raises":
            raise ValueError("bad data")
        case "ends":
            sys.exit(0)
        case "slow":
            time.sleep(group.timeout_s + 4)


def meet_others(fault: str, victim: int, group: Group, flat: torch.Tensor) -> None:
    match fault:
        case _ if fault.endswith("before a message"):
            group.receive(flat, victim, 1).wait()
        case "killed in a meeting":
            group.meet("saving")
        case "killed at work" | "stopped at work":
            group.one_after_first("compile", lambda: None)
        case _:
            group.sum_(flat)


def main() -> None:
    fault, victim, timeout_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    # torchrun ends all when one was killed; what the others notice is the question here.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    world = start(timeout_s=30)
    group = group_of(world, timeout_s)
    flat = torch.ones(world.size)
    for update in range(1, 13):
        group.place = f"update {update}"
        if update == 12:
            print(f"rank {world.rank} is process {os.getpid()}", flush=True)
            group.meet("print")
            if world.rank == victim:
                get_into_trouble(fault, group)
            break
        group.sum_(flat.fill_(1))
    begin = time.monotonic()
    try:
        meet_others(fault, victim, group, flat)
    except DistributedError as error:
        print(f"rank {world.rank} after {time.monotonic() - begin:.1f} s: {error}", flush=True)
        begin = time.monotonic()
        for method in (lambda: group.meet("again"), lambda: group.gather(1)):
            with pytest.raises(DistributedError, match=re.escape(str(error))):
                method()
        sys.exit(3 if time.monotonic() - begin < 0.5 else 4)


if __name__ == "__main__":
    main()
