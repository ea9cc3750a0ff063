import pytest
import torch
from torch.utils.data import BatchSampler, IterableDataset, TensorDataset

import poptorch
from poptorch import DataLoaderMode


def numbers(count):
    return TensorDataset(torch.arange(float(count)), -torch.arange(float(count)))


def options(iterations=2, accumulation=1, replicas=1):
    opts = poptorch.Options().deviceIterations(iterations).replicationFactor(replicas)
    opts.Training.gradientAccumulation(accumulation)
    return opts


class Stream(IterableDataset):
    def __init__(self, count):
        self.count = count

    def __iter__(self):
        return iter(torch.arange(float(self.count)))


def test_batches_hold_all_micro_batches_of_a_call():
    opts = options(2, 3, 2)
    loader = poptorch.DataLoader(opts, numbers(50), batch_size=2)
    assert loader.combinedBatchSize == loader.batch_size == 24
    assert loader.options is opts
    assert isinstance(loader, torch.utils.data.DataLoader)
    batches = list(loader)
    assert len(batches) == len(loader) == 2
    assert isinstance(batches[0], list)
    assert batches[1][0].tolist() == list(range(24, 48))


def test_input_groups_share_a_slice():
    opts = options(1, 1, 4).inputReplicaGrouping(2, poptorch.CommGroupType.Consecutive)
    assert poptorch.DataLoader(opts, numbers(20), batch_size=3).combinedBatchSize == 6


def test_shuffle_keeps_every_element_once():
    loader = poptorch.DataLoader(options(), numbers(8), batch_size=2, shuffle=True)
    seen = torch.cat([x for x, _ in loader]).tolist()
    assert sorted(seen) == list(range(8))


def test_last_batch_is_kept_on_request_with_a_warning():
    with pytest.warns(UserWarning, match="the last batch has 1"):
        loader = poptorch.DataLoader(options(), numbers(9), batch_size=2, drop_last=False)
    assert [len(x) for x, _ in loader] == [4, 4, 1]


def test_batch_sampler_length_is_the_samplers_own():
    loader = poptorch.DataLoader(
        options(), numbers(8), batch_sampler=BatchSampler(range(8), 2, drop_last=True)
    )
    assert len(loader) == 4
    assert len(list(loader)) < 4  # several of them make one item


def test_batch_sampler_groups_are_joined():
    loader = poptorch.DataLoader(
        options(), numbers(8), batch_sampler=BatchSampler(range(8), 2, drop_last=True)
    )
    assert loader.combinedBatchSize == 4
    assert [x.tolist() for x, _ in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]


@pytest.mark.parametrize("kwargs", [{"batch_size": 2}, {"shuffle": True}])
def test_batch_sampler_excludes_size_and_order(kwargs):
    sampler = BatchSampler(range(8), 2, drop_last=True)
    with pytest.raises(poptorch.Error, match="batch_sampler"):
        poptorch.DataLoader(options(), numbers(8), batch_sampler=sampler, **kwargs)


def test_batch_sampler_cannot_be_partitioned():
    opts = options()
    opts.Distributed.configureProcessId(0, 2)
    sampler = BatchSampler(range(8), 2, drop_last=True)
    with pytest.raises(poptorch.Error, match="divided among processes"):
        poptorch.DataLoader(opts, numbers(8), batch_sampler=sampler)


def shares(dataset, num_processes, **kwargs):
    found = []
    for process in range(num_processes):
        opts = options()
        opts.Distributed.configureProcessId(process, num_processes)
        loader = poptorch.DataLoader(opts, dataset, batch_size=2, **kwargs)
        found.append([x.tolist() for x, _ in loader])
    return found


def test_processes_get_the_micro_batches_of_their_replicas_in_turn():
    first, second = shares(numbers(18), 2)
    assert [len(batch) for batch in first + second] == [4] * 4
    assert first == [[0, 1, 4, 5], [8, 9, 12, 13]]
    assert second == [[2, 3, 6, 7], [10, 11, 14, 15]]


@pytest.mark.filterwarnings("ignore:.*not a multiple of the combined batch size")
def test_without_drop_last_processes_get_blocks_as_in_the_original():
    """Shares may differ in size: they are for validation, where nobody waits for anybody."""
    first, second = shares(numbers(19), 2, drop_last=False)
    assert [x for batch in first for x in batch] == list(range(10))
    assert [x for batch in second for x in batch] == list(range(10, 19))


@pytest.mark.parametrize(
    ("dataset", "kwargs", "fragment"),
    [
        (Stream(8), {}, "iterable"),
        (numbers(8), {"batch_size": None, "drop_last": False}, "batch_size=None"),
        (numbers(8), {"shuffle": True}, "options.randomSeed"),
    ],
)
def test_partitions_that_cannot_be_are_assertions(dataset, kwargs, fragment):
    opts = options()
    opts.Distributed.configureProcessId(0, 2)
    with pytest.raises(AssertionError, match=fragment):
        poptorch.DataLoader(opts, dataset, **kwargs)


def test_wrong_options_and_modes_are_assertions():
    with pytest.raises(AssertionError, match=r"poptorch.Options"):
        poptorch.DataLoader(numbers(4), options())
    with pytest.raises(AssertionError, match="DataLoaderMode"):
        poptorch.DataLoader(options(), numbers(4), mode="async")


def test_no_batching_needs_drop_last_off():
    loader = poptorch.DataLoader(options(), numbers(3), batch_size=None, drop_last=False)
    assert loader.combinedBatchSize is None
    assert [x.item() for x, _ in loader] == [0, 1, 2]
    with pytest.raises(ValueError, match="drop_last"):
        poptorch.DataLoader(options(), numbers(3), batch_size=None)


# asynchronous


def test_async_gives_the_same_batches_in_order():
    loader = poptorch.DataLoader(
        options(),
        numbers(12),
        batch_size=2,
        mode=DataLoaderMode.Async,
        async_options={
            "buffer_size": 2,
            "early_preload": True,
            "miss_sleep_time_in_ms": 0.5,
            "sharing_strategy": poptorch.SharingStrategy.SharedMemory,
        },
    )
    for _ in range(2):
        assert torch.cat([x.clone() for x, _ in loader]).tolist() == list(range(12))
    loader.terminate()
    with pytest.raises(AssertionError, match="terminated"):
        iter(loader)


def test_async_rebatched_assembles_from_pieces():
    loader = poptorch.DataLoader(
        options(),
        Stream(10),
        batch_size=2,
        mode=DataLoaderMode.AsyncRebatched,
        rebatched_worker_size=3,
    )
    assert [x.tolist() for x in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    loader.terminate()
    with pytest.raises(AssertionError, match="rebatched_worker_size"):
        poptorch.DataLoader(
            options(),
            Stream(10),
            batch_size=2,
            mode=DataLoaderMode.AsyncRebatched,
            rebatched_worker_size=5,
        )


def test_async_rebatched_takes_a_batch_sampler():
    data = numbers(12)
    sampler = torch.utils.data.BatchSampler(torch.utils.data.SequentialSampler(data), 2, True)
    settings = {"batch_sampler": sampler}
    expected = [x.tolist() for x, _ in poptorch.DataLoader(options(), data, **settings)]
    loader = poptorch.DataLoader(
        options(), data, **settings, mode=DataLoaderMode.AsyncRebatched, num_workers=1
    )
    assert (
        [x.tolist() for x, _ in loader] == expected == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    )
    loader.terminate()


def test_unknown_and_misplaced_async_options_are_refused():
    with pytest.raises(AssertionError, match="rebatched_size"):
        poptorch.DataLoader(
            options(), numbers(8), mode=DataLoaderMode.Async, async_options={"rebatched_size": 4}
        )
    with pytest.raises(TypeError, match="buffersize"):
        poptorch.DataLoader(
            options(), numbers(8), mode=DataLoaderMode.Async, async_options={"buffersize": 4}
        )


class Failing(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        if index == 5:
            raise ValueError("element five is bad")
        return torch.tensor(float(index))


def test_failures_in_the_child_are_errors_with_their_traceback():
    loader = poptorch.DataLoader(options(), Failing(), batch_size=2, mode=DataLoaderMode.Async)
    with pytest.raises(poptorch.Error, match="element five is bad"):
        list(loader)


def test_accessor_reads_loaders_and_iterables():
    loader = poptorch.DataLoader(options(), numbers(8), batch_size=2)
    accessor = poptorch.AsynchronousDataAccessor(loader)
    assert len(accessor) == 2
    assert [x.tolist() for x, _ in accessor] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    accessor.terminate()
    with pytest.raises(AssertionError, match="terminated"):
        iter(accessor)
    accessor = poptorch.AsynchronousDataAccessor(Stream(6), rebatched_size=None)
    assert [x.item() for x in accessor] == list(range(6))
    accessor.terminate()


def test_accessor_refuses_what_it_cannot_read():
    loader = poptorch.DataLoader(options(), numbers(8), mode=DataLoaderMode.Async)
    with pytest.raises(poptorch.Error, match="already loads asynchronously"):
        poptorch.AsynchronousDataAccessor(loader)
    loader.terminate()
    loader = poptorch.DataLoader(options(), numbers(8), drop_last=False)
    with pytest.raises(AssertionError, match="needs rebatched_size"):
        poptorch.AsynchronousDataAccessor(loader)
    with pytest.raises(AssertionError, match="more than 1"):
        poptorch.AsynchronousDataAccessor(numbers(8), rebatched_size=1)


@pytest.mark.parametrize("error", [poptorch.Error, AssertionError])
def test_an_accessor_of_an_empty_dataset_cannot_be_made(error):
    with pytest.raises(error, match=r"worker thread failed to start.*empty"):
        poptorch.AsynchronousDataAccessor([])


class Broken(torch.utils.data.Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        raise KeyError("nothing here")


@pytest.mark.parametrize("error", [poptorch.Error, AssertionError])
def test_an_accessor_of_a_broken_dataset_cannot_be_made(error):
    with pytest.raises(error, match=r"(?s)worker thread failed to start.*nothing here"):
        poptorch.AsynchronousDataAccessor(Broken())


def test_an_accessor_that_has_loaded_the_first_batch_yields_it_in_the_first_pass_alone():
    accessor = poptorch.AsynchronousDataAccessor(list(torch.arange(3)))
    first = next(iter(accessor))
    passes = [[x.item() for x in accessor] for _ in range(2)]
    accessor.terminate()
    assert (first.item(), passes) == (0, [[0, 1, 2]] * 2)


class Stopping(torch.utils.data.Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        return next(torch.tensor(float(number)) for number in range(3) if number == index)


@pytest.mark.parametrize("mode", list(DataLoaderMode))
def test_stop_iteration_of_a_dataset_is_an_error(mode):
    loader = poptorch.DataLoader(options(1), Stopping(), batch_size=2, mode=mode)
    with pytest.raises(poptorch.Error, match=r"Stopping.__getitem__.* raised StopIteration"):
        list(loader)


def test_stop_iteration_behind_an_accessor_is_an_error():
    loader = poptorch.DataLoader(options(1), Stopping(), batch_size=2)
    with pytest.raises(poptorch.Error, match="raised StopIteration"):
        list(poptorch.AsynchronousDataAccessor(loader))
