"""Datasets and waits that the tests of the prefetcher share."""

from __future__ import annotations

import multiprocessing
import os
import time

import psutil
import torch
from torch.utils.data import Dataset

WAIT_S = 20.0  # for another process; only a failing test waits as long


def tensors(count: int) -> list[torch.Tensor]:
    return [torch.full((3,), float(i)) for i in range(count)]


def firsts(batches) -> list[float]:
    return [batch.flatten()[0].item() for batch in batches]


def child_pid() -> int:
    (process,) = multiprocessing.active_children()
    return process.pid


def is_running(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def wait_until(condition) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


class Recorder(Dataset):
    """Writes down in shared memory how many elements were loaded, and by which process."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.log = torch.zeros(2, dtype=torch.int64).share_memory_()

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        self.log[0] += 1
        self.log[1] = os.getpid()
        return torch.tensor([float(index)])


class Hanging(Dataset):
    def __init__(self) -> None:
        self.pid = torch.zeros(1, dtype=torch.int64).share_memory_()

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 1:
            self.pid[0] = os.getpid()
            time.sleep(1000)
        return torch.tensor([float(index)])
