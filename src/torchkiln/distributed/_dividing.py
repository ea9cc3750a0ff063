"""Threads of the processes on one host: they divide its cores."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

import torch

from torchkiln.core._core_shares import slice_of, within_quota
from torchkiln.core._threads import threads_are_chosen
from torchkiln.distributed._members import Member


def divide_threads(rank: int, members: Mapping[int, Member]) -> None:
    """Give this process its share of the cores, and torch as many threads.

    Nothing changes if the user set OMP_NUM_THREADS, if threads were pinned before, or if the
    launcher gave each process cores of its own.
    """
    own = members[rank]
    sharing = [
        other
        for other, member in sorted(members.items())
        if member.place == own.place and set(member.cores) & set(own.cores)
    ]
    if threads_are_chosen() or not own.cores:
        return
    share = slice_of(own.cores, sharing.index(rank), len(sharing))
    torch.set_num_threads(within_quota(share, len(sharing)))
    if len(sharing) > 1:
        _move_to(set(share))


def _move_to(cores: set[int]) -> None:
    """Keep all threads of this process, and those that they start, on these cores."""
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it ended meanwhile
            os.sched_setaffinity(int(task.name), cores)
