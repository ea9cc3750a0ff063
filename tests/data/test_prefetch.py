from __future__ import annotations

import collections
import gc
import multiprocessing
import os
import random
import time
from typing import NamedTuple

import numpy as np
import pytest
import torch
from prefetch_helpers import Recorder, firsts, tensors, wait_until
from torch.utils.data import Dataset, TensorDataset

from torchkiln.core import Options, WorkerError, add_listener
from torchkiln.data import (
    AsyncPrefetcher,
    DataLoader,
    EmptyDatasetError,
    LoaderError,
    PrefetchError,
    RebatchError,
)

# ---------------------------------------------------------------- passes


@pytest.mark.parametrize("load_indefinitely", [True, False])
@pytest.mark.parametrize("buffer_size", [1, 3, 20])
def test_every_pass_yields_everything_in_order(load_indefinitely, buffer_size):
    prefetcher = AsyncPrefetcher(
        tensors(7), buffer_size=buffer_size, load_indefinitely=load_indefinitely
    )
    for _ in range(4):
        assert firsts(prefetcher) == list(range(7))
    assert len(prefetcher) == 7


@pytest.mark.parametrize("load_indefinitely", [True, False])
def test_a_partial_pass_restarts_from_the_beginning(load_indefinitely):
    prefetcher = AsyncPrefetcher(tensors(9), load_indefinitely=load_indefinitely)
    for count in (1, 4, 0, 9, 2):
        iterator = iter(prefetcher)
        assert firsts(next(iterator) for _ in range(count)) == list(range(count))
    assert firsts(prefetcher) == list(range(9))


def test_another_process_loads():
    recorder = Recorder(3)
    list(AsyncPrefetcher(recorder))
    assert recorder.log[1].item() not in (0, os.getpid())


def test_the_buffer_limits_how_far_the_child_runs_ahead():
    recorder = Recorder(50)
    prefetcher = AsyncPrefetcher(recorder, buffer_size=4)
    iterator = iter(prefetcher)
    first = next(iterator)
    wait_until(lambda: recorder.log[0] == 5)  # one taken, four waiting
    time.sleep(0.1)
    assert recorder.log[0] == 5
    assert first.item() == 0


def test_the_child_starts_with_the_first_iterator():
    recorder = Recorder(5)
    prefetcher = AsyncPrefetcher(recorder)
    assert multiprocessing.active_children() == []
    assert len(list(prefetcher)) == 5


def test_early_preload_fills_the_buffer_before_the_first_iterator():
    recorder = Recorder(5)
    prefetcher = AsyncPrefetcher(recorder, buffer_size=2, early_preload=True)
    wait_until(lambda: recorder.log[0] == 2)
    assert firsts(prefetcher) == list(range(5))
    assert firsts(prefetcher) == list(range(5))


def test_load_indefinitely_begins_the_next_pass_by_itself():
    recorder = Recorder(3)
    prefetcher = AsyncPrefetcher(recorder, buffer_size=2)
    assert len(list(prefetcher)) == 3
    wait_until(lambda: recorder.log[0] == 5)
    assert firsts(prefetcher) == [0, 1, 2]


def test_otherwise_the_next_pass_waits():
    recorder = Recorder(3)
    prefetcher = AsyncPrefetcher(recorder, buffer_size=2, load_indefinitely=False)
    assert len(list(prefetcher)) == 3
    time.sleep(0.1)
    assert recorder.log[0] == 3


def test_an_older_iterator_says_that_it_was_ended():
    prefetcher = AsyncPrefetcher(tensors(4))
    old = iter(prefetcher)
    next(old)
    new = iter(prefetcher)
    with pytest.raises(PrefetchError, match="newer iter"):
        next(old)
    assert next(new)[0] == 0


def test_an_exhausted_iterator_stays_exhausted():
    iterator = iter(AsyncPrefetcher(tensors(2)))
    assert len(list(iterator)) == 2
    assert list(iterator) == []


def test_an_iterator_keeps_its_loader_alive():
    iterator = iter(DataLoader(Options(), TensorDataset(torch.arange(4.0)), 2, mode="async"))
    gc.collect()
    assert [batch[0].tolist() for batch in iterator] == [[0, 1], [2, 3]]


# ---------------------------------------------------------------- what arrives


class Point(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


class Graph:
    """Not registered anywhere: any picklable object will do."""

    def __init__(self, x: torch.Tensor, name: str) -> None:
        self.x, self.name = x, name


def test_nested_structures_arrive_as_they_left():
    value = {
        "pair": (torch.arange(3), [torch.ones(2, 2), "text"]),
        "point": Point(torch.zeros(1), torch.ones(1)),
        "graph": Graph(torch.arange(4.0), "water"),
        "array": np.arange(3),
        "counts": collections.Counter(a=2),
        "none": None,
    }
    (got,) = AsyncPrefetcher([value])
    assert got.keys() == value.keys()
    assert type(got["pair"]) is tuple
    assert got["pair"][0].tolist() == [0, 1, 2]
    assert got["pair"][1][1] == "text"
    assert isinstance(got["point"], Point)
    assert (got["graph"].x.tolist(), got["graph"].name) == ([0, 1, 2, 3], "water")
    assert got["array"].tolist() == [0, 1, 2]
    assert got["counts"] == {"a": 2}


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor(3.5),
        torch.empty(0, 4),
        torch.tensor([True, False]),
        torch.arange(5, dtype=torch.uint8),
        torch.randn(3, 2, dtype=torch.float64),
        torch.randn(3).to(torch.bfloat16),
        torch.randn(3).to(torch.float16),
        torch.randn(2, dtype=torch.complex64),
        torch.randn(2, dtype=torch.complex64).conj(),
        torch.randn(4, 6)[:, ::2],
        torch.randn(5, 3).t(),
        torch.ones(1).expand(4),
        torch.randn(2, 3, requires_grad=True),
        torch.eye(3).to_sparse(),
        torch.nn.Parameter(torch.randn(2)),
    ],
    ids=lambda t: f"{t.layout}-{t.dtype}-{tuple(t.shape)}".replace("torch.", ""),
)
def test_every_kind_of_tensor_arrives(tensor):
    (got,) = AsyncPrefetcher([tensor])
    assert got.dtype == tensor.dtype
    assert got.shape == tensor.shape
    torch.testing.assert_close(got.detach(), tensor.detach(), rtol=0, atol=0)


def test_channels_last_is_kept_and_data_is_aligned():
    image = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    ((odd, got),) = AsyncPrefetcher([(torch.ones(3, dtype=torch.uint8), image)])
    assert got.is_contiguous(memory_format=torch.channels_last)
    assert got.data_ptr() % 64 == 0
    assert odd.untyped_storage().nbytes() == 3


def test_a_tensor_that_occurs_twice_stays_one():
    shared = torch.ones(2)
    ((a, b, c),) = AsyncPrefetcher([(shared, shared, torch.ones(2))])
    a[0] = 5
    assert b[0] == 5
    assert c[0] == 1


def test_batches_may_change_their_size():
    sizes = [1, 1000, 3, 5000, 0, 7]
    prefetcher = AsyncPrefetcher([torch.arange(size) for size in sizes], buffer_size=2)
    for _ in range(3):
        assert [batch.tolist() for batch in prefetcher] == [list(range(size)) for size in sizes]


def test_batches_that_are_kept_are_never_overwritten():
    prefetcher = AsyncPrefetcher(tensors(40), buffer_size=2)
    kept = list(prefetcher)
    view = kept[5][1:]
    list(prefetcher)
    assert firsts(kept) == list(range(40))
    del kept
    list(prefetcher)
    assert view.tolist() == [5.0, 5.0]


def test_memory_is_used_again_once_a_batch_is_dropped():
    prefetcher = AsyncPrefetcher(tensors(100), buffer_size=3)
    addresses = {batch.data_ptr() for batch in prefetcher}
    # Three waiting, one in use, one that the loop drops after the next has come.
    assert len(addresses) <= 5


def test_writing_to_a_batch_does_not_reach_the_dataset():
    prefetcher = AsyncPrefetcher(tensors(3), buffer_size=1)
    for batch in prefetcher:
        batch.fill_(-1)
    assert firsts(prefetcher) == [0, 1, 2]


def test_batches_outlive_the_loader():
    prefetcher = AsyncPrefetcher(tensors(3))
    kept = list(prefetcher)
    prefetcher.terminate()
    del prefetcher
    gc.collect()
    assert firsts(kept) == [0, 1, 2]


def test_random_datasets_differ_between_loaders_and_follow_the_seed():
    class Noise(Dataset):
        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> torch.Tensor:
            return torch.tensor([torch.rand(()), np.random.rand()])

    def draw() -> list[list[float]]:
        return [batch.tolist() for batch in AsyncPrefetcher(Noise())]

    torch.manual_seed(0)
    first, second = draw(), draw()
    torch.manual_seed(0)
    assert draw() == first
    assert all(
        a != b
        for one, two in zip(first, second, strict=True)
        for a, b in zip(one, two, strict=True)
    )


def test_waiting_is_traced():
    spans = []
    remove = add_listener(spans.append)
    try:
        list(AsyncPrefetcher(tensors(2)))
    finally:
        remove()
    assert [span.channel for span in spans] == ["data"] * 3


# ---------------------------------------------------------------- sources


def test_rebatching_cuts_and_joins():
    source = [torch.arange(0, 5), torch.arange(5, 6), torch.arange(6, 13)]
    whole = AsyncPrefetcher(source, rebatched_size=4)
    assert [batch.tolist() for batch in whole] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    rest = AsyncPrefetcher(source, rebatched_size=4, drop_last=False)
    assert [batch.tolist() for batch in rest][3:] == [[12]]


def test_rebatching_a_loader_follows_its_drop_last_and_has_a_length():
    data = TensorDataset(torch.arange(10))
    with pytest.warns(UserWarning, match="last batch has 1"):
        loader = DataLoader(Options(), data, 3, drop_last=False)
    prefetcher = AsyncPrefetcher(loader, rebatched_size=4)
    assert [len(batch[0]) for batch in prefetcher] == [4, 4, 2]
    assert len(prefetcher) == 3
    dropping = AsyncPrefetcher(DataLoader(Options(), data, 3), rebatched_size=4)
    assert [len(batch[0]) for batch in dropping] == [4, 4]
    assert len(dropping) == 2


def test_rebatching_needs_one_length():
    mixed = [(torch.ones(4), torch.ones(3))]
    with pytest.raises(WorkerError, match=r"batch\[1\] has 3 elements in dim 0 where 4"):
        list(AsyncPrefetcher(mixed, rebatched_size=2))
    with pytest.raises(WorkerError, match="0-dim tensor"):
        list(AsyncPrefetcher([torch.tensor(1)], rebatched_size=2))
    with pytest.raises(WorkerError, match="holds no tensor"):
        list(AsyncPrefetcher(["text"], rebatched_size=2))


def test_a_loader_in_use_keeps_its_own_workers():
    loader = DataLoader(Options(), TensorDataset(torch.arange(8)), 2, num_workers=1)
    ours = iter(loader)
    next(ours)
    assert len(list(AsyncPrefetcher(loader))) == 4
    assert len(list(ours)) == 3


def test_asynchronous_sources_are_refused():
    loader = DataLoader(Options(), TensorDataset(torch.arange(8)), 2, mode="async")
    with pytest.raises(PrefetchError, match="asynchronously already"):
        AsyncPrefetcher(loader)
    with pytest.raises(PrefetchError, match="asynchronously already"):
        AsyncPrefetcher(AsyncPrefetcher([1]))


@pytest.mark.parametrize("size", [0, -1, True, 2.0, None])
def test_bad_buffer_size_is_refused(size):
    with pytest.raises(LoaderError, match="buffer_size must be a positive int"):
        AsyncPrefetcher([1], buffer_size=size)


def test_bad_arguments_are_refused():
    with pytest.raises(RebatchError, match="rebatched_size must be a positive int, got 0"):
        AsyncPrefetcher([1], rebatched_size=0)
    with pytest.raises(LoaderError, match="'spawn'; got 'thread'"):
        AsyncPrefetcher([1], start_method="thread")


@pytest.mark.parametrize("source", [[], (i for i in ())], ids=["list", "generator"])
def test_an_empty_source_is_an_error(source):
    prefetcher = AsyncPrefetcher(source)
    with pytest.raises(EmptyDatasetError, match="gave no batch"):
        list(prefetcher)


@pytest.mark.filterwarnings("ignore::torchkiln.data.LoaderWarning")
def test_too_few_elements_for_a_batch_are_an_error():
    loader = DataLoader(Options(), TensorDataset(torch.arange(3)), 8, mode="async")
    with pytest.raises(EmptyDatasetError, match="needs 8 elements"):
        next(iter(loader))


def test_a_generator_that_is_used_up_says_so():
    prefetcher = AsyncPrefetcher(torch.tensor([i]) for i in range(3))
    assert firsts(prefetcher) == [0, 1, 2]
    with pytest.raises(EmptyDatasetError, match="read only once"):
        list(prefetcher)


@pytest.mark.parametrize("seed", range(4))
def test_any_mix_of_partial_passes_and_kept_batches(seed):
    draw = random.Random(seed)
    count = draw.randint(1, 9)
    source = [torch.full((draw.randint(1, 50),), float(i)) for i in range(count)]
    prefetcher = AsyncPrefetcher(
        source, buffer_size=draw.randint(1, 4), load_indefinitely=draw.random() < 0.7
    )
    kept: list[tuple[int, torch.Tensor]] = []
    for _ in range(40):
        iterator = iter(prefetcher)
        for i in range(draw.choice([0, 1, count // 2, count])):
            batch = next(iterator)
            assert torch.equal(batch, source[i])
            if draw.random() < 0.2:
                kept.append((i, batch))
        if len(kept) > 5:
            del kept[draw.randrange(len(kept))]
        assert all(torch.equal(batch, source[i]) for i, batch in kept)
