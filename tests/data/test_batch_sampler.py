from __future__ import annotations

import warnings

import pytest
import torch
from torch.utils.data import BatchSampler, SequentialSampler, TensorDataset

from torchkiln.core import Options
from torchkiln.data import (
    BatchSamplerError,
    DataLoader,
    LoaderWarning,
    register_container,
)

DATASET = TensorDataset(torch.arange(20), torch.arange(40).view(20, 2))
MODES = ["sync", "async"]


def pairs() -> BatchSampler:
    return BatchSampler(SequentialSampler(DATASET), 2, drop_last=False)


class Ragged:
    """Batches of different sizes, and no length."""

    def __iter__(self):
        yield from ([0], [1, 2], [3], [4, 5, 6], [7])


@pytest.mark.parametrize("mode", MODES)
def test_consecutive_batches_are_concatenated(mode):
    loader = DataLoader(Options(device_iterations=5), DATASET, batch_sampler=pairs(), mode=mode)
    batches = list(loader)
    assert [batch[0].tolist() for batch in batches] == [list(range(10)), list(range(10, 20))]
    assert [batch[1].shape for batch in batches] == [(10, 2), (10, 2)]
    assert len(loader) == 2
    assert loader.combined_batch_size == 10


@pytest.mark.parametrize("mode", MODES)
def test_incomplete_group_is_dropped_with_a_warning(mode):
    with pytest.warns(LoaderWarning, match="yields 10 batches, and 4 make a combined.* dropped"):
        loader = DataLoader(Options(device_iterations=4), DATASET, batch_sampler=pairs(), mode=mode)
    assert [len(batch[0]) for batch in loader] == [8, 8]
    assert len(loader) == 2


@pytest.mark.parametrize("mode", MODES)
def test_incomplete_group_is_kept_on_request(mode):
    with pytest.warns(LoaderWarning, match="concatenated into a smaller last batch"):
        loader = DataLoader(
            Options(device_iterations=4),
            DATASET,
            batch_sampler=pairs(),
            drop_last=False,
            mode=mode,
        )
    assert [len(batch[0]) for batch in loader] == [8, 8, 4]
    assert len(loader) == 3


def test_sampler_without_length_or_size():
    with pytest.warns(LoaderWarning, match="has no length"):
        loader = DataLoader(Options(gradient_accumulation=2), DATASET, batch_sampler=Ragged())
    assert loader.combined_batch_size is None
    assert [batch[0].tolist() for batch in loader] == [[0, 1, 2], [3, 4, 5, 6]]


def test_factor_one_passes_batches_through_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader = DataLoader(Options(), DATASET, batch_sampler=Ragged())
    assert [len(batch[0]) for batch in loader] == [1, 2, 1, 3, 1]


@pytest.mark.parametrize("conflict", [{"batch_size": 2}, {"shuffle": True}, {"batch_size": None}])
def test_size_and_order_belong_to_the_sampler(conflict):
    with pytest.raises(BatchSamplerError, match="leave out"):
        DataLoader(Options(), DATASET, batch_sampler=pairs(), **conflict)


def test_partition_is_refused():
    options = Options(num_processes=2, process_id=1)
    with pytest.raises(BatchSamplerError, match="auto_distributed_partitioning=False"):
        DataLoader(options, DATASET, batch_sampler=pairs())
    loader = DataLoader(
        options, DATASET, batch_sampler=pairs(), auto_distributed_partitioning=False
    )
    assert len(loader) == 10


@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_async_rebatched_yields_what_the_other_modes_do(num_workers, drop_last):
    def passes(mode, num_workers):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # ten batches are no multiple of three
            loader = DataLoader(
                Options(device_iterations=3),
                DATASET,
                batch_sampler=pairs(),
                drop_last=drop_last,
                mode=mode,
                num_workers=num_workers,
            )
        return [[batch[0].tolist() for batch in loader] for _ in range(2)]

    expected = passes("sync", 0)
    assert len(expected[0]) == (3 if drop_last else 4)
    assert passes("async_rebatched", num_workers) == expected


def test_a_worker_size_beside_a_batch_sampler_is_told_to_have_no_effect():
    with pytest.warns(LoaderWarning, match="rebatched_worker_size=1 has no effect"):
        loader = DataLoader(
            Options(),
            DATASET,
            batch_sampler=pairs(),
            mode="async_rebatched",
            rebatched_worker_size=1,
        )
    assert len(list(loader)) == 10


def test_workers_load_the_batches_of_a_group():
    loader = DataLoader(Options(device_iterations=5), DATASET, batch_sampler=pairs(), num_workers=2)
    for _ in range(2):
        assert [batch[0].tolist() for batch in loader] == [list(range(10)), list(range(10, 20))]


class Labelled:
    def __init__(self, x: torch.Tensor, name: str) -> None:
        self.x, self.name = x, name


class LabelledContainer:
    def tensors(self, value):
        yield value.x

    def rebuild(self, original, tensors):
        return Labelled(next(tensors), original.name)


@pytest.mark.parametrize("mode", MODES)
def test_registered_types_are_concatenated(mode):
    register_container(Labelled, LabelledContainer())
    try:
        loader = DataLoader(
            Options(device_iterations=5),
            DATASET,
            batch_sampler=pairs(),
            collate_fn=lambda samples: Labelled(torch.stack([s[0] for s in samples]), "kept"),
            mode=mode,
        )
        first = next(iter(loader))
    finally:
        register_container(Labelled, None)
    assert type(first) is Labelled
    assert (first.x.tolist(), first.name) == (list(range(10)), "kept")
