from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import time
import weakref

import pytest
import torch
from prefetch_helpers import Hanging, Recorder, child_pid, firsts, is_running, tensors, wait_until
from torch.utils.data import Dataset, TensorDataset

from torchkiln.core import Options, WorkerError
from torchkiln.data import (
    AsyncPrefetcher,
    DataLoader,
    StartMethod,
    TerminatedError,
)
from torchkiln.data._prefetch_handle import resolve_start_method

# ---------------------------------------------------------------- failures


class Failing(Dataset):
    def __init__(self, error: BaseException, at: int = 2) -> None:
        self.error, self.at = error, at

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == self.at:
            raise self.error
        return torch.tensor([float(index)])


@pytest.mark.parametrize(
    "error",
    [
        KeyError("molecule 7"),
        ConnectionResetError("the server"),
        EOFError("file"),
        SystemExit(3),
        KeyboardInterrupt(),
        StopAsyncIteration(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_arrives_in_its_turn_with_its_traceback(error):
    iterator = iter(AsyncPrefetcher(Failing(error)))
    assert firsts(next(iterator) for _ in range(2)) == [0, 1]
    with pytest.raises(WorkerError, match=rf"(?s)with {type(error).__name__}.*in __getitem__"):
        next(iterator)
    assert list(iterator) == []


def test_loading_can_be_tried_again_after_an_error():
    failing = Failing(ValueError("once"))
    prefetcher = AsyncPrefetcher(failing)
    with pytest.raises(WorkerError, match="once"):
        list(prefetcher)
    failing.at = -1
    assert firsts(prefetcher) == list(range(6))


def test_an_error_beyond_what_was_read_does_not_fail_the_next_pass():
    prefetcher = AsyncPrefetcher(Failing(ValueError("far")), buffer_size=5)
    iterator = iter(prefetcher)
    assert next(iterator).item() == 0
    wait_until(lambda: not multiprocessing.active_children())  # it has failed ahead of us
    again = iter(prefetcher)
    assert firsts(next(again) for _ in range(2)) == [0, 1]
    with pytest.raises(WorkerError, match="far"):
        next(again)


def test_an_error_in_a_torch_worker_of_the_child():
    loader = DataLoader(Options(), Failing(KeyError("deep"), at=5), 2, num_workers=1, mode="async")
    with pytest.raises(WorkerError, match=r"(?s)deep.*Original Traceback.*in __getitem__"):
        list(loader)


def test_a_batch_that_cannot_be_sent_says_so():
    with pytest.raises(WorkerError, match="type function cannot be sent"):
        list(AsyncPrefetcher([lambda: None]))


def test_an_interrupt_while_waiting_leaves_the_loader_usable():
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    dataset = Hanging()
    prefetcher = AsyncPrefetcher(dataset)
    iterator = iter(prefetcher)
    next(iterator)
    wait_until(lambda: dataset.pid[0] != 0)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt):
            next(iterator)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert not is_running(dataset.pid.item())
    assert next(iter(prefetcher)).item() == 0


def test_auto_avoids_fork_once_cuda_is_initialised(monkeypatch):
    assert resolve_start_method(StartMethod.SPAWN) is StartMethod.SPAWN
    assert resolve_start_method(StartMethod.AUTO) is StartMethod.FORK
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert resolve_start_method(StartMethod.AUTO) is StartMethod.FORKSERVER


def test_a_killed_child_is_an_error_and_not_a_hang():
    iterator = iter(AsyncPrefetcher(Hanging()))
    assert next(iterator).item() == 0
    os.kill(child_pid(), signal.SIGKILL)
    with pytest.raises(WorkerError, match=r"killed by signal 9 \(SIGKILL\)"):
        next(iterator)


def test_a_killed_child_with_workers_is_an_error_and_not_a_hang():
    dataset = Hanging()
    iterator = iter(DataLoader(Options(), dataset, 1, num_workers=1, mode="async"))
    next(iterator)
    wait_until(lambda: dataset.pid[0] != 0)
    os.kill(child_pid(), signal.SIGKILL)
    with pytest.raises(WorkerError, match="SIGKILL"):
        next(iterator)
    wait_until(lambda: not is_running(dataset.pid.item()))  # a worker would sleep on otherwise


def test_a_child_that_exits_is_an_error():
    class Exiting(Dataset):
        def __len__(self) -> int:
            return 1

        def __getitem__(self, index: int) -> None:
            os._exit(7)

    with pytest.raises(WorkerError, match="ended with exit code 7"):
        list(AsyncPrefetcher(Exiting()))


def test_what_was_loaded_before_a_kill_is_still_read():
    recorder = Recorder(9)
    prefetcher = AsyncPrefetcher(recorder, buffer_size=2)
    iterator = iter(prefetcher)
    next(iterator)
    wait_until(lambda: recorder.log[0] == 3)
    time.sleep(0.05)
    os.kill(child_pid(), signal.SIGKILL)
    assert next(iterator).item() == 1
    assert next(iterator).item() == 2
    with pytest.raises(WorkerError):
        next(iterator)
    assert firsts(prefetcher) == list(range(9))  # a new child


# ---------------------------------------------------------------- the end


def test_terminate_during_iteration():
    loader = DataLoader(Options(), Hanging(), 1, mode="async")
    iterator = iter(loader)
    kept = next(iterator)
    loader.terminate()
    assert multiprocessing.active_children() == []
    for read in (lambda: next(iterator), lambda: iter(loader)):
        with pytest.raises(TerminatedError, match="make a new loader"):
            read()
    loader.terminate()
    assert kept.item() == 0


def test_terminate_ends_a_worker_that_hangs():
    dataset = Hanging()
    loader = DataLoader(Options(), dataset, 1, num_workers=1, mode="async")
    next(iter(loader))
    wait_until(lambda: dataset.pid[0] != 0)
    loader.terminate()
    wait_until(lambda: not is_running(dataset.pid.item()))


def test_terminate_ends_a_child_that_refuses_to_stop():
    class Stubborn(Hanging):
        def __getitem__(self, index: int) -> torch.Tensor:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            return super().__getitem__(index)

    dataset = Stubborn()
    prefetcher = AsyncPrefetcher(dataset)
    next(iter(prefetcher))
    wait_until(lambda: dataset.pid[0] != 0)
    prefetcher.terminate()
    assert not is_running(dataset.pid.item())


def test_terminate_before_the_first_iterator():
    prefetcher = AsyncPrefetcher(tensors(1))
    prefetcher.terminate()
    with pytest.raises(TerminatedError):
        iter(prefetcher)


def test_dropping_the_loader_ends_the_child_at_once():
    loader = DataLoader(Options(), TensorDataset(torch.arange(8)), 2, mode="async")
    for _ in loader:
        pass
    alive = weakref.ref(loader)
    assert len(multiprocessing.active_children()) == 1
    gc.disable()  # by reference counts alone
    try:
        del loader
        assert alive() is None
        assert multiprocessing.active_children() == []
    finally:
        gc.enable()


def test_the_child_ignores_interrupts_meant_for_the_parent():
    prefetcher = AsyncPrefetcher(tensors(30), buffer_size=1)
    iterator = iter(prefetcher)
    next(iterator)
    os.kill(child_pid(), signal.SIGINT)
    assert len(list(iterator)) == 29


def test_the_child_runs_on_the_cores_it_is_given():
    class Cores(Dataset):
        def __len__(self) -> int:
            return 1

        def __getitem__(self, index: int) -> torch.Tensor:
            return torch.tensor(sorted(os.sched_getaffinity(0)))

    core = max(os.sched_getaffinity(0))
    (got,) = AsyncPrefetcher(Cores(), cores=[core])
    assert got.tolist() == [core]


# ---------------------------------------------------------------- start methods


def test_unpicklable_data_needs_no_care_by_default():
    data = [torch.ones(1)]
    loader = DataLoader(
        Options(),
        TensorDataset(torch.arange(4)),
        2,
        collate_fn=lambda samples: torch.stack([s[0] for s in samples]) + data[0],
        mode="async",
    )
    assert [batch.tolist() for batch in loader] == [[1, 2], [3, 4]]


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_unpicklable_data_is_named_where_it_matters(method):
    prefetcher = AsyncPrefetcher((i for i in range(3)), start_method=method)
    with pytest.raises(WorkerError, match=rf"by '{method}'.*start_method='fork'"):
        iter(prefetcher)


def test_a_fresh_process_gives_the_same_batches():
    loader = DataLoader(
        Options(),
        TensorDataset(torch.arange(6)),
        2,
        mode="async",
        async_options={"start_method": StartMethod.SPAWN},
    )
    assert [batch[0].tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5]]
