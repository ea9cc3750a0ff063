"""Start, say what the world is, and leave; a failure is one line.

python _starting.py TIMEOUT
"""

from __future__ import annotations

import os
import sys
import time

import torchkiln.distributed
from torchkiln.core import DistributedError
from torchkiln.distributed import current, start

assert "torch" not in sys.modules, "asking for the world must not load it"
assert current() is None


def main() -> None:
    import torch  # before the clock starts

    timeout_s = float(sys.argv[1])
    begin = time.monotonic()
    try:
        world = start(timeout_s=timeout_s)
    except DistributedError as error:
        print(f"after {time.monotonic() - begin:.1f} s: {error}", flush=True)
        sys.exit(3)
    assert start() is world
    assert current() is world
    values = torchkiln.distributed.group_of(world, timeout_s).gather(world.rank)
    assert values == list(range(world.size))
    own = sorted(os.sched_getaffinity(0))
    print(
        f"{world} threads={torch.get_num_threads()} cores={own} "
        f"interface={os.environ.get('GLOO_SOCKET_IFNAME')}",
        flush=True,
    )


if __name__ == "__main__":
    main()
