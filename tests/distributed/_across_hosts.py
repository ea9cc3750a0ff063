"""Many short updates between hosts, each printed; what goes wrong is one line.

python _across_hosts.py TIMEOUT UPDATES
"""

from __future__ import annotations

import os
import signal
import sys
import time

import torch

from torchkiln.core import DistributedError
from torchkiln.distributed import group_of, start


def main() -> None:
    timeout_s, updates = float(sys.argv[1]), int(sys.argv[2])
    # torchrun ends the other ranks when one has failed; each should say what it noticed.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    world = start(timeout_s=60)
    group = group_of(world, timeout_s)
    print(f"rank {world.rank} {world} over {os.environ['GLOO_SOCKET_IFNAME']}", flush=True)
    try:
        for update in range(1, updates + 1):
            group.place = f"update {update}"
            flat = torch.full((64 * 1024,), float(world.rank + update))
            group.sum_(flat)
            assert flat[-1].item() == 2 * update + 1
            if update % 5 == 0:
                group.meet("saving")
            print(f"rank {world.rank} made update {update}", flush=True)
            time.sleep(0.1)
    except DistributedError as error:
        print(f"rank {world.rank} failed: {error}", flush=True)
        sys.exit(3)
    print(f"rank {world.rank} is done", flush=True)


if __name__ == "__main__":
    main()
