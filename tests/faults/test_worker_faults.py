"""Workers that are killed, stopped, raise, or run out of memory: an error that says so, no hang."""

from __future__ import annotations

import faulthandler
import functools
import gc
import os
import resource
import signal
from pathlib import Path

import psutil
import pytest
import torch
from _amount import WHOLE
from torch.utils.data import Dataset
from torch_geometric.data import Data

from torchkiln import Options
from torchkiln.core import TorchkilnError, WorkerError
from torchkiln.data import DataLoader, _stopped
from torchkiln.graphs import FixedSizeLoader, GraphStore
from torchkiln.graphs.loaders import _group_reader
from torchkiln.graphs.loaders._group_reader import GroupMaker

LENGTH, AT = 12, 5


def end_oneself(number: int) -> None:
    faulthandler.disable()  # pytest's would fill the screen
    os.kill(os.getpid(), number)


def raise_error() -> None:
    raise ValueError("molecule 7 is broken")


def raise_memory_error() -> None:
    raise MemoryError("no memory for molecule 7")


def run_out_of_memory() -> None:
    """Ask for more than the process may have."""
    used = psutil.Process().memory_info().vms
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**26, resource.RLIM_INFINITY))
    torch.empty(2**30).fill_(1.0)


# torch's handler of SIGCHLD raises wherever the program happens to be, also in the middle of making
# a temporary file, which Python then complains about.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

FAULTS = {
    "killed": (functools.partial(end_oneself, signal.SIGKILL), "SIGKILL|by signal: Killed"),
    "crashed": (functools.partial(end_oneself, signal.SIGSEGV), "SIGSEGV|by signal: Segm"),
    "stopped": (functools.partial(end_oneself, signal.SIGSTOP), "stopped"),
    "exited": (functools.partial(os._exit, 7), "exit code 7|exited unexpectedly"),
    "raising": (raise_error, "molecule 7 is broken"),
    "memory error": (raise_memory_error, "no memory for molecule 7"),
    "out of memory": (run_out_of_memory, "memory"),
}
ENDED = ("killed", "crashed", "stopped", "exited")


class Faulty(Dataset):
    """Element 5 is a fault while a file is there, if this is not the process that made the dataset.

    A file, because workers keep their copy of the dataset.
    """

    def __init__(self, fault, mark: Path) -> None:
        self.fault, self.home, self.mark = fault, os.getpid(), mark
        mark.touch()

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == AT and os.getpid() != self.home and self.mark.exists():
            self.fault()
        return torch.tensor([float(index)])


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    monkeypatch.setattr(_stopped, "_PATIENCE_S", 0.5)
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.5)
    # torch took the number as a default when it was imported.
    torchs = torch.utils.data.dataloader._MultiProcessingDataLoaderIter._try_get_data
    monkeypatch.setattr(torchs, "__defaults__", (0.5,))


LOADERS = {
    "sync with workers": {"num_workers": 2},
    "async": {"mode": "async"},
    "async with workers": {"mode": "async", "num_workers": 1},
}


@pytest.mark.parametrize("kind", LOADERS)
@pytest.mark.parametrize("name", FAULTS if WHOLE else ["killed", "stopped"])
def test_a_fault_of_a_worker_is_an_error_and_the_next_pass_works(kind, name, tmp_path, survived):
    fault, said = FAULTS[name]
    dataset = Faulty(fault, tmp_path / "faulty")
    loader = DataLoader(Options(), dataset, 1, shuffle=False, **LOADERS[kind])
    got = []
    with pytest.raises((TorchkilnError, ValueError, MemoryError, RuntimeError), match=said) as info:
        got.extend(batch.item() for batch in loader)
    if name in ENDED and not isinstance(info.value, WorkerError):
        # torch's handler of SIGCHLD raises wherever the program is, here perhaps in this test.
        assert kind == "sync with workers"
        assert "DataLoader worker" in str(info.value)
    # What came before the fault is right and in order; nothing is made up or left out.
    assert got == [float(i) for i in range(len(got))]
    assert len(got) <= AT
    dataset.mark.unlink()
    assert [batch.item() for batch in loader] == [float(i) for i in range(LENGTH)]
    loader.terminate()
    del loader, info
    gc.collect()  # ends workers here, where torch waits for them impatiently too
    survived(f"a worker that is {name}")


@pytest.mark.parametrize("name", FAULTS if WHOLE else ["killed", "stopped"])
def test_a_fault_of_a_worker_of_fixed_size_batches_is_an_error(name, monkeypatch, survived):
    fault, said = FAULTS[name]
    home, make, calls = os.getpid(), GroupMaker.__call__, []

    def faulty(self, item):
        calls.append(item)
        if os.getpid() != home and len(calls) == 2:
            fault()
        return make(self, item)

    monkeypatch.setattr(GroupMaker, "__call__", faulty)
    monkeypatch.setattr(_group_reader, "_MAX_GROUP", 1)
    edges = torch.tensor([[0], [1]])
    graphs = [Data(x=torch.full((2, 1), float(i)), edge_index=edges) for i in range(LENGTH)]
    store = GraphStore.from_dataset(graphs)
    loader = FixedSizeLoader(store, batch_size=2, num_workers=1)
    with pytest.raises(WorkerError, match=said):
        list(loader)
    monkeypatch.setattr(GroupMaker, "__call__", make)
    values = [value for batch in loader for value in batch.x[batch.node_mask, 0].tolist()]
    assert values == [float(i) for i in range(LENGTH) for _ in range(2)]
    loader.terminate()
    survived(f"a worker that is {name}")
