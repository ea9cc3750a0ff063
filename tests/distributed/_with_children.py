"""A rank is killed while children that it forked live on; the other notices at once.

python _with_children.py VICTIM
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time

import torch

from torchkiln.core import DistributedError
from torchkiln.data._prefetch import AsyncPrefetcher
from torchkiln.distributed import group_of, start


class Slow(torch.utils.data.Dataset):
    """Loads a few elements, and then keeps its worker busy for long."""

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(60 if index > 12 else 0)
        return torch.zeros(3)


def main() -> None:
    victim = int(sys.argv[1])
    world = start(timeout_s=30)
    group = group_of(world, 50)
    workers = iter(torch.utils.data.DataLoader(Slow(), num_workers=2))
    prefetched = iter(AsyncPrefetcher(Slow(), start_method="fork"))
    # Of a later group, too, and with connections to the store that came after it.
    later = group_of(world, 40)
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    child.start()
    for _ in range(3):
        next(workers), next(prefetched)
        group.gather(world.rank)
        later.gather(world.rank)
    later.place = "update 3"
    if world.rank == victim:
        time.sleep(0.5)  # the other one waits in the next collective
        os.kill(os.getpid(), signal.SIGKILL)
    begin = time.monotonic()
    try:
        later.sum_(torch.zeros(2))
    except DistributedError as error:
        print(f"after {time.monotonic() - begin:.1f} s: {error}", flush=True)
    child.kill()
    child.join()
    os._exit(3)  # the workers are in the middle of something


if __name__ == "__main__":
    main()
