"""StopIteration of the user's code is an error, never a shorter pass."""

from __future__ import annotations

import pickle

import pytest
import torch
from prefetch_helpers import firsts
from torch.utils.data import Dataset, IterableDataset

import torchkiln
from torchkiln.core import Options, TorchkilnError, WorkerError
from torchkiln.data import AsyncPrefetcher, DataLoader, DatasetError, LoaderMode
from torchkiln.data._user_code import UserDataset

MATCH = "raised StopIteration, which would end the pass"


class Stopping(Dataset):
    """Looks up something with `next` and forgets that it may not be there."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        found = next(number for number in range(5) if number == index % 12)
        return torch.tensor([float(found)])


class StoppingMany(Stopping):
    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        return [self[index] for index in indices]


class Numbers(Dataset):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([float(index)])


class Stream(IterableDataset):
    def __iter__(self):
        return iter(Numbers()[index] for index in range(12))


class RefusingStream(IterableDataset):
    def __iter__(self):
        raise StopIteration


def stop_at_four(samples: list[torch.Tensor]) -> torch.Tensor:
    if samples[0] == 4:
        raise StopIteration
    return torch.stack(samples)


CASES = {
    "getitem": (Stopping(), None),
    "getitems": (StoppingMany(), None),
    "collate": (Numbers(), stop_at_four),
    "collate of a stream": (Stream(), stop_at_four),
}


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("mode", list(LoaderMode))
@pytest.mark.parametrize("case", CASES)
def test_every_loader_raises_in_its_turn(case, mode, num_workers):
    dataset, collate = CASES[case]
    loader = DataLoader(
        Options(), dataset, 2, num_workers=num_workers, mode=mode, collate_fn=collate
    )
    batches = iter(loader)
    assert firsts(next(batches) for _ in range(2)) == [0, 2]
    with pytest.raises(TorchkilnError, match=MATCH):
        next(batches)


def test_the_error_names_the_line():
    with pytest.raises(DatasetError, match=r"Stopping.__getitem__ \(.*test_user_code.py:\d+\)"):
        list(DataLoader(Options(), Stopping(), 2))


def test_a_batch_sampler_hides_nothing():
    batches = [[0, 1], [2, 3], [4, 5], [6, 7]]
    loader = DataLoader(Options(device_iterations=2), Stopping(), batch_sampler=batches)
    with pytest.raises(DatasetError, match=MATCH):
        list(loader)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_loader_of_torch_that_is_prefetched(num_workers):
    loader = torch.utils.data.DataLoader(Stopping(), 2, num_workers=num_workers)
    with pytest.raises(WorkerError, match=MATCH):
        list(AsyncPrefetcher(loader))


def test_a_dataset_that_is_prefetched_without_a_loader():
    with pytest.raises(WorkerError, match=rf"Stopping.__getitem__.*{MATCH}"):
        list(AsyncPrefetcher(Stopping()))


def test_a_stream_that_refuses_in_a_worker():
    with pytest.raises(DatasetError, match=MATCH):
        list(DataLoader(Options(), RefusingStream(), 2, num_workers=1))


class StopsWhenLoaded:
    def __reduce__(self):
        return next, (iter(()),)


def collate_to_stop(samples: list[torch.Tensor]) -> object:
    return StopsWhenLoaded()


@pytest.mark.parametrize(("mode", "num_workers"), [("async", 0), ("async", 1), ("sync", 1)])
def test_a_batch_that_stops_while_it_is_unpickled(mode, num_workers):
    loader = DataLoader(
        Options(), Numbers(), 2, num_workers=num_workers, mode=mode, collate_fn=collate_to_stop
    )
    with pytest.raises(TorchkilnError, match=MATCH):
        list(loader)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_streams_still_end_by_themselves(num_workers):
    loader = DataLoader(Options(), Stream(), 3, num_workers=num_workers)
    assert firsts(loader) == [0, 3, 6, 9]
    assert firsts(loader) == [0, 3, 6, 9]


def test_the_loader_still_shows_the_dataset_and_the_collation_that_it_was_given():
    dataset = Numbers()
    loader = torchkiln.DataLoader(Options(), dataset, 2, collate_fn=stop_at_four)
    next(iter(loader))
    assert loader.dataset is dataset
    assert loader.collate_fn is stop_at_four


def test_the_wrapper_of_a_dataset_can_be_pickled():
    again = pickle.loads(pickle.dumps(UserDataset(StoppingMany())))
    assert [item.item() for item in again.__getitems__([1, 2])] == [1, 2]
    assert UserDataset(Numbers()).__getitems__ is None
