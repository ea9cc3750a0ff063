"""Somebody else has made the process group; Ray Train does.

python _adopting.py
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

from torchkiln.distributed import current, group_of, start


def main() -> None:
    threads, cores = torch.get_num_threads(), os.sched_getaffinity(0)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if rank == 0:
        world = current()  # alone: what the environment says needs no answer from others
        assert world is not None
        assert (world.rank, world.size, world.local_rank, world.local_size) == (0, 2, 0, 2)
    dist.barrier()
    check(rank)
    assert (torch.get_num_threads(), os.sched_getaffinity(0)) == (threads, cores), "not ours"
    dist.destroy_process_group()
    assert current() is None, "the user has left the run"
    # Now with nothing but what the processes tell each other.
    address = f"tcp://127.0.0.1:{int(os.environ['MASTER_PORT']) + 1}"
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        del os.environ[name]
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    check(rank)
    print(f"rank {rank} is done", flush=True)


def check(rank: int) -> None:
    world = start(timeout_s=30)
    assert world == current()
    assert (world.rank, world.size) == (rank, 2)
    assert (world.local_rank, world.local_size) == (rank, 2)
    flat = torch.full((4,), rank + 1.0)
    group = group_of(world, 20)
    group.sum_(flat)
    assert flat.tolist() == [3.0] * 4
    dist.barrier()  # their own group still works
    group.meet("end")


if __name__ == "__main__":
    main()
