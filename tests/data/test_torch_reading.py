"""torch's workers: what becomes of a killed one, of a batch that cannot be sent, of full memory."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch
from prefetch_helpers import Hanging, firsts, tensors, wait_until
from torch.utils.data import Dataset, TensorDataset, get_worker_info

from torchkiln.core import Options, TorchkilnError, WorkerError
from torchkiln.data import DataLoader, DatasetError, LoaderError, _torch_reading


class KillsItself(Dataset):
    """Kills its worker at one index, as long as it is told to."""

    def __init__(self, how: int, size: int = 3) -> None:
        self.how, self.size = how, size
        self.armed = torch.ones(1, dtype=torch.int64).share_memory_()

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 5 and self.armed[0]:
            self.armed[0] = 0
            if self.how == 0:
                os._exit(0)
            os.kill(os.getpid(), self.how)
            time.sleep(20)
        return torch.full((self.size,), float(index))


# torch's handler of SIGCHLD raises wherever the program happens to be, also in the middle of making
# a temporary file, which Python then complains about.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

KILLED = r"killed by signal 9 \(SIGKILL\).*out of memory.*fewer workers|by signal: Killed"


@pytest.mark.parametrize(
    ("how", "match", "mode", "persistent"),
    [
        (signal.SIGKILL, KILLED, "sync", True),
        (signal.SIGKILL, KILLED, "sync", False),
        (signal.SIGKILL, KILLED, "async", True),
        (signal.SIGBUS, r"\(SIGBUS\); shared memory is full: enlarge /dev/shm", "sync", True),
        (signal.SIGTERM, r"killed by signal 15 \(SIGTERM\)", "sync", True),
        (0, "ended with exit code 0", "sync", True),
    ],
)
def test_a_killed_worker_is_one_clear_error_and_the_next_pass_works(how, match, mode, persistent):
    loader = DataLoader(
        Options(), KillsItself(how), 2, num_workers=2, mode=mode, persistent_workers=persistent
    )
    batches = iter(loader)
    with pytest.raises(WorkerError, match=match):
        list(batches)
    assert list(batches) == []
    assert firsts(loader) == [0, 2, 4, 6]
    assert firsts(loader) == [0, 2, 4, 6]


def test_a_worker_that_is_killed_between_passes_is_replaced():
    loader = DataLoader(Options(), TensorDataset(torch.arange(8)), 2, num_workers=2)
    assert len(list(loader)) == 4
    worker = loader._iterator._workers[1]
    os.kill(worker.pid, signal.SIGKILL)
    worker.join()
    assert [batch[0].tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_a_connection_that_breaks_before_the_death_is_known(monkeypatch):
    """The handles of tensors come over a connection of their own, which may break first."""
    dataset = Hanging()
    loader = DataLoader(Options(), dataset, 1, num_workers=1)
    batches = iter(loader)
    next(batches)
    wait_until(lambda: dataset.pid[0] != 0)
    torch_batches = loader._iterator

    def break_off(timeout: float = 0) -> None:
        os.kill(dataset.pid.item(), signal.SIGKILL)
        raise ConnectionResetError(104, "Connection reset by peer")

    monkeypatch.setattr(torch_batches, "_try_get_data", break_off)
    with pytest.raises(WorkerError, match=r"SIGKILL|by signal: Killed"):
        next(batches)
    assert next(iter(loader)).item() == 0


def test_an_error_of_the_dataset_stays_its_own():
    class Failing(Dataset):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> torch.Tensor:
            raise ConnectionResetError(f"server {index}")

    with pytest.raises(ConnectionResetError, match="server"):
        list(DataLoader(Options(), Failing(), 2, num_workers=1))


class Unsendable:
    def __reduce__(self):
        raise KeyError("not for you")


def with_unsendable(samples: list[torch.Tensor]) -> dict[str, object]:
    return {"x": torch.stack(samples), "extra": [1, Unsendable()]}


@pytest.mark.parametrize(("mode", "num_workers"), [("sync", 1), ("async", 0), ("async", 1)])
def test_a_batch_that_cannot_be_pickled_is_named_and_nothing_hangs(mode, num_workers):
    loader = DataLoader(
        Options(),
        tensors(4),
        2,
        num_workers=num_workers,
        mode=mode,
        collate_fn=with_unsendable,
    )
    with pytest.raises(
        TorchkilnError, match=r"batch\['extra'\]\[1\], of type .*Unsendable.*not for"
    ):
        list(loader)


def test_a_batch_that_cannot_be_pickled_needs_no_care_without_processes():
    batch = next(iter(DataLoader(Options(), tensors(4), 2, collate_fn=with_unsendable)))
    assert isinstance(batch["extra"][1], Unsendable)


def test_a_dataset_that_spawned_workers_cannot_be_given_is_named():
    dataset = TensorDataset(torch.arange(4))
    dataset.extra = {"handle": Unsendable()}
    loader = DataLoader(Options(), dataset, 2, num_workers=1, multiprocessing_context="spawn")
    with pytest.raises(LoaderError, match=r"dataset\.extra\['handle'\], of type .*Unsendable"):
        iter(loader)


def test_workers_see_the_dataset_itself_and_start_as_the_user_says():
    class Seen(Dataset):
        offset = 0

        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> torch.Tensor:
            assert get_worker_info().dataset is self
            return torch.tensor(float(index + self.offset))

    def shift(worker_id: int) -> None:
        get_worker_info().dataset.offset = 10

    loader = DataLoader(Options(), Seen(), 2, num_workers=1, worker_init_fn=shift)
    assert [batch.tolist() for batch in loader] == [[10, 11], [12, 13]]


SMALL_SHARED_MEMORY = """
import torch
from torch.utils.data import TensorDataset
from torchkiln.core import Options, WorkerError
from torchkiln.data import DataLoader

data = TensorDataset(torch.zeros(8, 2**19))
for mode, collate in (("sync", None), ("async", None), ("sync", lambda batch: batch[0][0])):
    loader = DataLoader(Options(), data, 4, num_workers=1, mode=mode, collate_fn=collate)
    try:
        list(loader)
    except WorkerError as error:
        assert "no room for a batch in /dev/shm, which has 1 MB; enlarge it" in str(error)
        print("full")
print(len(list(DataLoader(Options(), data, 4, mode="async"))))
"""


def _can_mount() -> bool:
    unshare = shutil.which("unshare")
    command = [unshare or "", "-m", "mount", "-t", "tmpfs", "tmpfs", "/dev/shm"]
    return unshare is not None and subprocess.run(command, capture_output=True).returncode == 0


@pytest.mark.skipif(not _can_mount(), reason="needs the right to mount a small /dev/shm")
def test_full_shared_memory_is_a_clear_error_with_workers_and_does_not_matter_without(tmp_path):
    script = tmp_path / "small.py"
    script.write_text(SMALL_SHARED_MEMORY)
    run = subprocess.run(
        [
            "unshare",
            "-m",
            "sh",
            "-c",
            'mount -t tmpfs -o size=1M tmpfs /dev/shm && exec "$0" "$1"',
            sys.executable,
            str(script),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.stdout.split() == ["full", "full", "full", "2"], run.stderr


def test_an_error_while_sending_is_the_one_of_the_data():
    with pytest.raises(DatasetError):
        list(DataLoader(Options(), tensors(2), 2, num_workers=1, collate_fn=with_unsendable))


def many_tensors(samples: list[object]) -> list[torch.Tensor]:
    return [torch.ones(3) for _ in range(200)]


def allow_few_files(_worker_id: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (60, 60))


def test_too_many_open_files_are_not_called_an_unpicklable_batch():
    loader = DataLoader(
        Options(),
        tensors(4),
        2,
        num_workers=1,
        collate_fn=many_tensors,
        worker_init_fn=allow_few_files,
    )
    with pytest.raises(WorkerError, match=r"no files left.*ulimit -n.*file_system.*larger tensors"):
        list(loader)


def test_a_dataset_is_not_pickled_to_explain_why_forking_failed(monkeypatch):
    class Precious(TensorDataset):
        def __reduce__(self):
            raise AssertionError("it was pickled")

    def refuse() -> int:
        raise OSError(12, "Cannot allocate memory")

    asked = []
    monkeypatch.setattr(_torch_reading, "find_unpicklable", lambda *_: asked.append(1))
    loader = DataLoader(
        Options(), Precious(torch.arange(4)), 2, num_workers=1, multiprocessing_context="fork"
    )
    monkeypatch.setattr(os, "fork", refuse)
    with pytest.raises(OSError, match="Cannot allocate memory"):
        iter(loader)
    assert not asked


def test_attributes_of_torchs_iterator_are_there():
    batches = iter(DataLoader(Options(), tensors(4), 2, num_workers=2))
    assert len(batches._workers) == 2
    batches._shutdown_workers()
    assert not any(worker.is_alive() for worker in batches._workers)
    with pytest.raises(AttributeError, match="nothing_of_this_name"):
        batches.nothing_of_this_name  # noqa: B018


@pytest.mark.parametrize(
    ("error", "broken"),
    [
        (ConnectionResetError(104, "Connection reset by peer"), True),
        (EOFError(), True),
        (
            ConnectionResetError("Caught ConnectionResetError in DataLoader worker process 0."),
            False,
        ),
        (ValueError("odd"), False),
    ],
)
def test_a_connection_to_a_worker_is_told_from_one_of_the_dataset(error, broken):
    assert _torch_reading._is_broken_connection(error) is broken
