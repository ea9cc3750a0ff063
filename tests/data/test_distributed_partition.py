from __future__ import annotations

import itertools

import pytest
import torch
from torch.utils.data import IterableDataset, SequentialSampler, TensorDataset

from torchkiln.core import Options
from torchkiln.data import DataLoader, LoaderWarning, PartitionError, PartitionSampler

MODES = ["sync", "async", "async_rebatched"]


def numbers(count: int) -> TensorDataset:
    return TensorDataset(torch.arange(count))


def read(loader) -> list[int]:
    return [value for batch in loader for value in batch[0].tolist()]


def loaders(count: int, processes: int, batch_size: int, **kwargs) -> list[DataLoader]:
    """Return a loader for each process; they train models of their own."""
    seed = kwargs.pop("random_seed", None)
    return [
        DataLoader(
            Options(
                num_processes=processes, process_id=rank, random_seed=seed, sync_gradients=False
            ),
            numbers(count),
            batch_size,
            **kwargs,
        )
        for rank in range(processes)
    ]


@pytest.mark.parametrize("mode", MODES)
def test_processes_get_contiguous_blocks_of_whole_batches(mode):
    parts = loaders(23, 3, 2, mode=mode)
    assert [len(loader) for loader in parts] == [3, 3, 3]
    assert [read(loader) for loader in parts] == [
        [0, 1, 2, 3, 4, 5],
        [6, 7, 8, 9, 10, 11],
        [12, 13, 14, 15, 16, 17],
    ]


@pytest.mark.filterwarnings("ignore::torchkiln.data.LoaderWarning")
def test_without_drop_last_the_split_is_even_and_complete():
    parts = [read(loader) for loader in loaders(11, 3, 2, drop_last=False)]
    assert [len(part) for part in parts] == [4, 4, 3]
    assert list(itertools.chain(*parts)) == list(range(11))


def test_the_warning_counts_the_elements_of_this_process():
    options = Options(num_processes=2, sync_gradients=False)
    with pytest.warns(LoaderWarning, match=r"5 elements .* the last batch has 1"):
        DataLoader(options, numbers(10), 4, drop_last=False)


@pytest.mark.parametrize("mode", MODES)
def test_shuffle_gives_disjoint_parts_of_one_permutation(mode):
    parts = [read(loader) for loader in loaders(24, 3, 4, shuffle=True, random_seed=1, mode=mode)]
    assert sorted(itertools.chain(*parts)) == list(range(24))
    assert list(itertools.chain(*parts)) != list(range(24))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("num_workers", [0, 1])
def test_order_is_a_function_of_seed_and_epoch(mode, num_workers):
    def epochs(seed: int) -> list[list[int]]:
        loader = loaders(
            24, 2, 4, shuffle=True, random_seed=seed, mode=mode, num_workers=num_workers
        )[1]
        torch.manual_seed(seed + 100 * num_workers)  # must not matter
        return [read(loader) for _ in range(3)]

    expected = [
        list(_sampler(24, batch_size=4, process_id=1, seed=7, epoch=epoch)) for epoch in range(3)
    ]
    assert epochs(7) == expected
    assert epochs(8) != expected
    assert len({tuple(order) for order in expected}) == 3


@pytest.mark.parametrize("mode", MODES)
def test_set_epoch_resumes(mode):
    whole = loaders(24, 2, 4, shuffle=True, random_seed=3, mode=mode)[0]
    order = [read(whole) for _ in range(5)]
    resumed = loaders(24, 2, 4, shuffle=True, random_seed=3, mode=mode)[0]
    resumed.set_epoch(3)
    assert [read(resumed), read(resumed)] == order[3:]
    resumed.set_epoch(1)
    assert [read(resumed), read(resumed)] == order[1:3]


def test_a_partial_pass_counts_as_an_epoch_in_every_mode():
    def second_pass(mode: str) -> list[int]:
        loader = loaders(24, 2, 4, shuffle=True, random_seed=3, mode=mode)[0]
        next(iter(loader))
        return read(loader)

    assert second_pass("sync") == second_pass("async") == second_pass("async_rebatched")


def test_leftovers_are_used_on_other_epochs():
    seen: set[int] = set()
    for epoch in range(8):
        for rank in range(2):
            seen |= set(_sampler(11, batch_size=2, process_id=rank, seed=0, epoch=epoch))
    assert seen == set(range(11))


def test_odd_epochs_shift_the_window_by_the_leftover():
    whole = _sampler(11, batch_size=1, process_id=0, seed=0, epoch=1, num_processes=1)
    part = _sampler(11, batch_size=2, process_id=0, seed=0, epoch=1)
    assert list(part) == list(whole)[3:7]  # 11 - 2 * 4 are left over


def test_seeds_do_not_replay_each_other():
    assert list(_sampler(50, batch_size=1, process_id=0, seed=1, epoch=0)) != list(
        _sampler(50, batch_size=1, process_id=0, seed=0, epoch=1)
    )


@pytest.mark.parametrize("seed", [-1, 0, 2**64 - 1])
def test_any_int_is_a_seed(seed):
    assert len(list(_sampler(8, batch_size=1, process_id=0, seed=seed, epoch=0))) == 4


def test_shuffle_needs_a_seed():
    with pytest.raises(PartitionError, match=r"needs options\.random_seed"):
        loaders(8, 2, 1, shuffle=True)


def test_no_batching_cannot_be_divided():
    with pytest.raises(PartitionError, match="batch_size=None"):
        loaders(8, 2, None, drop_last=False)


def test_iterable_dataset_cannot_be_divided():
    class Endless(IterableDataset):
        def __iter__(self):
            yield from ()

    options = Options(num_processes=2)
    with pytest.raises(PartitionError, match="auto_distributed_partitioning=False"):
        DataLoader(options, Endless())
    DataLoader(options, Endless(), auto_distributed_partitioning=False)


def test_a_sampler_cannot_be_divided():
    with pytest.raises(PartitionError, match="SequentialSampler"):
        loaders(8, 2, 1, sampler=SequentialSampler(numbers(8)))


def test_partition_can_be_switched_off():
    parts = loaders(6, 2, 2, auto_distributed_partitioning=False)
    assert [read(loader) for loader in parts] == [list(range(6))] * 2


def test_process_outside_the_group_is_refused():
    with pytest.raises(PartitionError, match=r"process_id 2 is outside 0\.\.1"):
        PartitionSampler(8, batch_size=1, num_processes=2, process_id=2, drop_last=True)


def _sampler(
    count: int, *, batch_size: int, process_id: int, seed: int, epoch: int, num_processes: int = 2
) -> PartitionSampler:
    sampler = PartitionSampler(
        count,
        batch_size=batch_size,
        num_processes=num_processes,
        process_id=process_id,
        drop_last=True,
        seed=seed,
    )
    sampler.set_epoch(epoch)
    return sampler
