"""Processes that train together get, update by update, what one process with all replicas gets."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.utils.data import SequentialSampler, TensorDataset

from torchkiln.core import Options
from torchkiln.data import DataLoader, PartitionError, PartitionSampler

MODES = ["sync", "async", "async_rebatched"]


def numbers(count: int) -> TensorDataset:
    return TensorDataset(torch.arange(count))


def read(loader) -> list[list[int]]:
    return [batch[0].tolist() for batch in loader]


def options_of(world, rank, replicas, accumulation=1, iterations=1, **more) -> Options:
    return Options(
        num_processes=world,
        process_id=rank,
        replication_factor=replicas,
        gradient_accumulation=accumulation,
        device_iterations=iterations,
        **more,
    )


def micro_batches(batches, size: int) -> list[list[list[int]]]:
    """Return the micro-batches of each batch."""
    return [[batch[i : i + size] for i in range(0, len(batch), size)] for batch in batches]


def assert_parts_of_folded(ranks, whole, replicas: int) -> None:
    """Compare micro-batches of all ranks with those of the folded run, slot by slot."""
    world = len(ranks)
    assert {len(batches) for batches in ranks} == {len(whole)}
    for call, batch in enumerate(whole):
        assert sum(len(batches[call]) for batches in ranks) == len(batch)
        for number, micro_batch in enumerate(batch):
            slot, replica = divmod(number, world * replicas)
            rank, local = divmod(replica, replicas)
            assert ranks[rank][call][slot * replicas + local] == micro_batch


@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_updates_are_those_of_the_folded_run(world, replicas):
    dataset = numbers(500)
    for iterations, accumulation in itertools.product([1, 2, 3], repeat=2):
        shape = (accumulation, iterations)
        folded = DataLoader(options_of(1, 0, world * replicas, *shape), dataset, 2)
        ranks = [
            DataLoader(options_of(world, rank, replicas, *shape), dataset, 2)
            for rank in range(world)
        ]
        assert {len(loader) for loader in ranks} == {len(folded)}
        parts = [micro_batches(read(loader), 2) for loader in ranks]
        assert_parts_of_folded(parts, micro_batches(read(folded), 2), replicas)


@pytest.mark.parametrize("mode", MODES)
def test_a_shuffle_is_that_of_a_folded_run_with_the_same_sampler(mode):
    """One process draws from torch's generator; a sampler gives it the order of several."""
    dataset, seed, epochs = numbers(53), 7, 3
    sampler = PartitionSampler(
        len(dataset), batch_size=8, num_processes=1, process_id=0, drop_last=True, seed=seed
    )
    folded = DataLoader(options_of(1, 0, 4), dataset, 2, sampler=sampler)
    ranks = [
        DataLoader(
            options_of(2, rank, 2, random_seed=seed),
            dataset,
            2,
            shuffle=True,
            mode=mode,
            num_workers=int(mode == "async_rebatched"),
        )
        for rank in range(2)
    ]
    for epoch in [*range(epochs), 1]:
        for loader in (folded, *ranks):
            loader.set_epoch(epoch)
        parts = [micro_batches(read(loader), 2) for loader in ranks]
        whole = micro_batches(read(folded), 2)
        assert_parts_of_folded(parts, whole, 2)
        assert whole != sorted(whole)
    for loader in ranks:
        loader.terminate()


def test_replicas_that_share_an_input_count_once():
    dataset = numbers(64)
    folded = DataLoader(options_of(1, 0, 8, 2, input_group_size=2), dataset, 2)
    ranks = [
        DataLoader(options_of(2, rank, 4, 2, input_group_size=2), dataset, 2) for rank in range(2)
    ]
    parts = [micro_batches(read(loader), 2) for loader in ranks]
    assert_parts_of_folded(parts, micro_batches(read(folded), 2), 2)


def updates_of(world: int, replicas: int, accumulation: int, *, seed: int, epoch: int):
    """Return the elements of each update, over all processes."""
    shares = []
    for rank in range(world):
        options = options_of(world, rank, replicas, accumulation, random_seed=seed)
        loader = DataLoader(options, numbers(101), 3, shuffle=True)
        loader.set_epoch(epoch)
        shares.append(read(loader))
    return [sorted(itertools.chain(*update)) for update in zip(*shares, strict=True)]


@pytest.mark.parametrize("epoch", [0, 1])
def test_updates_of_a_shuffle_do_not_depend_on_the_number_of_processes(epoch):
    expected = updates_of(2, 2, 1, seed=1, epoch=epoch)
    for shape in [(4, 1, 1), (2, 1, 2)]:
        assert updates_of(*shape, seed=1, epoch=epoch) == expected
    assert updates_of(2, 2, 1, seed=2, epoch=epoch) != expected
    seen = list(itertools.chain(*expected))
    assert len(seen) == len(set(seen)) == 101 // 12 * 12


def test_every_element_comes_once_if_they_fill_whole_batches():
    parts = [
        DataLoader(options_of(2, rank, 1), numbers(24), 3, drop_last=False) for rank in range(2)
    ]
    shares = [read(loader) for loader in parts]
    assert [len(share) for share in shares] == [4, 4]
    assert sorted(element for share in shares for batch in share for element in batch) == list(
        range(24)
    )


def test_elements_that_some_processes_would_lack_are_refused():
    with pytest.raises(
        PartitionError,
        match=r"25 elements do not fill whole batches of 6 in each of 2 .*: 1 are left over; "
        r"pass drop_last=True, or make the dataset a multiple of 12\. .*sync_gradients=False",
    ):
        DataLoader(options_of(2, 0, 2), numbers(25), 3, drop_last=False)


def test_blocks_can_be_asked_for_and_are_the_rule_for_models_of_their_own():
    for more, argument in [({}, {"contiguous_blocks": True}), ({"sync_gradients": False}, {})]:
        shares = [
            read(DataLoader(options_of(2, rank, 1, **more), numbers(9), 2, **argument))
            for rank in range(2)
        ]
        assert shares == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
    options = options_of(2, 1, 1, sync_gradients=False)
    assert read(DataLoader(options, numbers(9), 2, contiguous_blocks=False)) == [[2, 3], [6, 7]]


@pytest.mark.filterwarnings("ignore::torchkiln.data.LoaderWarning")
def test_validation_reads_every_element_once():
    shares = [
        read(
            DataLoader(
                options_of(3, rank, 1, sync_gradients=False), numbers(20), 1, drop_last=False
            )
        )
        for rank in range(3)
    ]
    seen = [element for share in shares for batch in share for element in batch]
    assert sorted(seen) == list(range(20))


def test_a_sampler_of_ones_own_stays_ones_own():
    dataset = numbers(8)
    with pytest.raises(PartitionError, match="SequentialSampler"):
        DataLoader(options_of(2, 0, 1), dataset, sampler=SequentialSampler(dataset))


def test_a_turn_is_part_of_a_batch():
    with pytest.raises(PartitionError, match="turn_size 4 does not divide batch_size 6"):
        PartitionSampler(
            24, batch_size=6, num_processes=2, process_id=0, drop_last=True, turn_size=4
        )
