"""`start` and `current`: joining the other processes once, and asking for the world afterwards.

No torch up here: whether there are others may be asked before it is loaded.
"""

from __future__ import annotations

import sys

from torchkiln.distributed._world import World

_current: World | None = None


def start(timeout_s: float = 120) -> World:
    """Join the other processes of this run, and return this one's place among them.

    Takes a process group that exists already; else what torchrun, Open MPI's mpirun or SLURM's srun
    said in the environment; else this process is alone. A second call returns the same world.

    Args:
        timeout_s: How long to wait for the others to come.

    Raises:
        DistributedError: They do not come, or the launcher's variables are not complete.
    """
    global _current
    if _current is None or not _is_current(_current):
        from torchkiln.distributed._joining import join

        _current = join(timeout_s)
    return _current


def current() -> World | None:
    """Return the world of this process; None before `start`, if nobody else made a group."""
    if _group_size() is not None:
        return start()
    return _current if _current is not None and _is_current(_current) else None


def _is_current(world: World) -> bool:
    """Whether a process group was neither made nor destroyed by somebody else since then."""
    size = _group_size()
    if size is None:
        return world.size == 1
    return (world.size, world.rank) == (size, sys.modules["torch.distributed"].get_rank())


def _group_size() -> int | None:
    """Return the number of processes in torch's group; None: there is none. Loads no torch."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_initialized():
        return None
    size: int = distributed.get_world_size()
    return size
