"""The workers behind torch's `DataLoader`, as Torchkiln relies on them."""

import warnings

import torch
from torch.utils.data import DataLoader, IterableDataset

from torchkiln.torch_internals._data_loading import (
    end_workers,
    forget_length,
    keep_iterator,
    kept_iterator,
    workers_of,
)


class Longer(IterableDataset):
    """Says that it is shorter than it is."""

    def __len__(self):
        return 2

    def __iter__(self):
        return iter(range(4))


def test_a_loader_keeps_the_iterator_of_persistent_workers():
    loader = DataLoader(range(4), num_workers=1, persistent_workers=True)
    assert kept_iterator(loader) is None
    list(loader)
    kept = kept_iterator(loader)
    (worker,) = workers_of(kept)
    list(loader)
    assert kept_iterator(loader) is kept
    assert workers_of(kept) == [worker]
    end_workers(kept)


def test_a_loader_uses_the_iterator_that_it_is_told_to_keep():
    loader = DataLoader(range(4), num_workers=1, persistent_workers=True)
    list(loader)
    first = kept_iterator(loader)
    keep_iterator(loader, None)
    list(loader)
    assert kept_iterator(loader) is not first
    for iterator in (first, kept_iterator(loader)):
        end_workers(iterator)


def test_workers_are_processes():
    iterator = iter(DataLoader(range(4), num_workers=2))
    workers = workers_of(iterator)
    assert len({worker.pid for worker in workers}) == 2
    assert [worker.exitcode for worker in workers] == [None, None]
    end_workers(iterator)


def test_there_are_no_workers_without_an_iterator_or_without_processes():
    assert workers_of(None) == []
    assert workers_of(iter(DataLoader(range(4)))) == []


def test_ended_workers_are_gone_and_nobody_reports_their_death():
    iterator = iter(DataLoader(range(4), num_workers=2))
    workers = workers_of(iterator)
    end_workers(iterator)
    for worker in workers:
        worker.join(10)
        assert worker.exitcode is not None
    # torch's handler of SIGCHLD raises at the next look at the workers of any loader.
    assert len(list(DataLoader(torch.arange(3), num_workers=1))) == 3


def test_a_forgotten_length_is_not_compared_with_the_data():
    loader = DataLoader(Longer(), batch_size=None)
    assert len(loader) == 2
    forget_length(loader)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert list(loader) == [0, 1, 2, 3]
