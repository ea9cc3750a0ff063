from __future__ import annotations

import itertools
import math
import warnings

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset, get_worker_info

from torchkiln.core import Options
from torchkiln.data import DataLoader, LoaderError, LoaderMode, LoaderWarning, RebatchError

MODES = list(LoaderMode)


def numbers(count: int) -> TensorDataset:
    return TensorDataset(torch.arange(count), torch.arange(count).float() * 2)


class Numbers(IterableDataset):
    """Splits 0..count among torch's workers, one contiguous block each."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self):
        info = get_worker_info()
        num, rank = (info.num_workers, info.id) if info else (1, 0)
        share = math.ceil(self.count / num)
        yield from (torch.tensor(i) for i in range(self.count)[rank * share : (rank + 1) * share])


class SizedNumbers(Numbers):
    def __len__(self) -> int:
        return self.count


def flat(batches: list[list[int]]) -> list[int]:
    return list(itertools.chain.from_iterable(batches))


def values(loader) -> list[list[int]]:
    return [(batch if isinstance(batch, torch.Tensor) else batch[0]).tolist() for batch in loader]


@pytest.mark.parametrize(
    ("options", "combined"),
    [
        ({}, 2),
        ({"device_iterations": 3}, 6),
        ({"gradient_accumulation": 2, "device_iterations": 2}, 8),
        ({"replication_factor": 4}, 8),
        ({"replication_factor": 4, "input_group_size": 2, "gradient_accumulation": 3}, 12),
    ],
)
@pytest.mark.parametrize("mode", MODES)
def test_batches_have_the_combined_size(options, combined, mode):
    loader = DataLoader(Options(**options), numbers(25), 2, mode=mode)
    assert loader.combined_batch_size == combined
    assert loader.batch_size == combined
    batches = values(loader)
    assert len(batches) == len(loader) == 25 // combined
    assert flat(batches) == list(range(25 // combined * combined))


@pytest.mark.parametrize("mode", MODES)
def test_tuple_samples_become_lists_of_tensors(mode):
    batch = next(iter(DataLoader(Options(), numbers(4), 2, mode=mode)))
    assert type(batch) is list
    assert batch[1].tolist() == [0.0, 2.0]


@pytest.mark.parametrize("mode", MODES)
def test_incomplete_batch_comes_last_with_a_warning(mode):
    with pytest.warns(LoaderWarning, match=r"10 elements .* size 4: the last batch has 2"):
        loader = DataLoader(Options(), numbers(10), 4, drop_last=False, mode=mode)
    assert len(loader) == 3
    assert values(loader) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_a_multiple_is_complete_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader = DataLoader(Options(), numbers(8), 4, drop_last=False)
    assert len(loader) == 2


def test_no_batch_at_all_is_announced():
    with pytest.warns(LoaderWarning, match="3 elements, fewer than the combined batch size 8"):
        loader = DataLoader(Options(device_iterations=2), numbers(3), 4)
    assert len(loader) == 0


def test_defaults_differ_from_torch_as_documented():
    loader = DataLoader(Options(), numbers(4))
    assert loader.drop_last is True
    assert loader.persistent_workers is False
    assert loader.mode is LoaderMode.SYNC
    assert DataLoader(Options(), numbers(4), num_workers=1).persistent_workers is True
    off = DataLoader(Options(), numbers(4), num_workers=1, persistent_workers=False)
    assert off.persistent_workers is False


def test_options_are_kept():
    options = Options(device_iterations=2)
    assert DataLoader(options, numbers(4)).options is options


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_no_batching(mode):
    loader = DataLoader(Options(), numbers(3), None, drop_last=False, mode=mode)
    assert loader.combined_batch_size is None
    assert [sample[0].item() for sample in loader] == [0, 1, 2]


def test_no_batching_needs_drop_last_off():
    with pytest.raises(ValueError, match="drop_last"):
        DataLoader(Options(), numbers(3), None)


@pytest.mark.parametrize("batch_size", [0, -1, 1.5, True, "2"])
def test_bad_batch_size_is_refused(batch_size):
    with pytest.raises(LoaderError, match="batch_size must be a positive int"):
        DataLoader(Options(), numbers(3), batch_size)


def test_options_of_another_type_are_refused():
    with pytest.raises(TypeError, match=r"must be torchkiln\.Options, got TensorDataset"):
        DataLoader(numbers(3), Options())


def test_unknown_mode_is_refused():
    with pytest.raises(LoaderError, match="'async_rebatched'; got 'fast'"):
        DataLoader(Options(), numbers(3), mode="fast")


def test_misspelled_argument_is_refused():
    with pytest.raises(TypeError, match="colate_fn"):
        DataLoader(Options(), numbers(3), colate_fn=list)


def test_torch_arguments_are_passed_on():
    loader = DataLoader(Options(), numbers(4), 2, collate_fn=lambda samples: torch.tensor(7))
    assert [batch.item() for batch in loader] == [7, 7]


@pytest.mark.parametrize("mode", MODES)
def test_shuffle_yields_every_element_once_in_a_new_order_each_pass(mode):
    torch.manual_seed(0)
    loader = DataLoader(Options(), numbers(32), 4, shuffle=True, mode=mode)
    first, second = flat(values(loader)), flat(values(loader))
    assert sorted(first) == sorted(second) == list(range(32))
    assert first != second
    assert first != list(range(32))


@pytest.mark.parametrize("mode", MODES)
def test_shuffle_follows_the_global_seed(mode):
    def order(seed: int) -> list[list[int]]:
        torch.manual_seed(seed)
        return values(DataLoader(Options(), numbers(16), 4, shuffle=True, mode=mode))

    assert order(3) == order(3)
    assert order(3) != order(4)


def test_shuffle_equals_torch():
    torch.manual_seed(5)
    ours = values(DataLoader(Options(), numbers(16), 4, shuffle=True))
    torch.manual_seed(5)
    theirs = values(torch.utils.data.DataLoader(numbers(16), 4, shuffle=True))
    assert ours == theirs


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("num_workers", [0, 1])
def test_iterable_dataset(mode, num_workers):
    loader = DataLoader(Options(), Numbers(10), 3, num_workers=num_workers, mode=mode)
    assert values(loader) == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert values(loader) == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    with pytest.raises(TypeError):
        len(loader)


def test_sized_iterable_dataset_has_a_length():
    loader = DataLoader(Options(), SizedNumbers(10), 3)
    assert len(loader) == 3
    with pytest.warns(LoaderWarning, match="the last batch has 1"):
        loader = DataLoader(Options(), SizedNumbers(10), 3, drop_last=False)
    assert len(loader) == 4


def test_workers_that_repeat_an_iterable_dataset_are_announced():
    with pytest.warns(LoaderWarning, match="each of the 2 workers reads the whole"):
        DataLoader(Options(), Numbers(4), num_workers=2)


def test_shuffling_an_iterable_dataset_is_refused():
    with pytest.raises(ValueError, match="shuffle"):
        DataLoader(Options(), Numbers(4), shuffle=True)


def test_rebatching_keeps_what_workers_leave_over():
    # Blocks of 7 among 2 workers: in pieces of 3 each ends with 1, which torch would drop.
    def init(worker_id: int) -> None: ...

    loader = DataLoader(
        Options(),
        Numbers(14),
        3,
        num_workers=2,
        worker_init_fn=init,
        mode=LoaderMode.ASYNC_REBATCHED,
        rebatched_worker_size=2,
    )
    batches = values(loader)
    assert [len(batch) for batch in batches] == [3, 3, 3, 3]
    assert len(set(flat(batches))) == 12


@pytest.mark.parametrize("mode", ["async", "async_rebatched"])
def test_only_the_last_batch_is_incomplete_with_several_workers(mode):
    loader = DataLoader(
        Options(),
        Numbers(14),
        3,
        num_workers=2,
        worker_init_fn=lambda worker_id: None,
        drop_last=False,
        mode=mode,
    )
    batches = values(loader)
    assert [len(batch) for batch in batches] == [3, 3, 3, 3, 2]
    assert sorted(flat(batches)) == list(range(14))


@pytest.mark.parametrize("size", [0, 9, -1, 2.0])
def test_worker_size_must_fit_the_combined_batch(size):
    with pytest.raises(RebatchError, match=r"outside 1\.\.8"):
        DataLoader(Options(), numbers(16), 8, mode="async_rebatched", rebatched_worker_size=size)


def test_rebatched_size_is_not_an_async_option():
    with pytest.raises(RebatchError, match="remove it from async_options"):
        DataLoader(Options(), numbers(4), mode="async", async_options={"rebatched_size": 2})


def test_unknown_async_option_is_refused():
    with pytest.raises(TypeError, match="bufer_size"):
        DataLoader(Options(), numbers(4), mode="async", async_options={"bufer_size": 2})


def test_async_keeps_the_order_of_torch_workers():
    loader = DataLoader(Options(), numbers(24), 2, num_workers=2, mode="async")
    assert flat(values(loader)) == list(range(24))
    assert flat(values(loader)) == list(range(24))


class Broken(Dataset):
    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 5:
            raise KeyError("the fifth element")
        return torch.tensor(index)


def test_worker_failure_keeps_its_traceback():
    loader = DataLoader(Options(), Broken(), 2, num_workers=1)
    with pytest.raises(KeyError, match=r"(?s)Original Traceback.*__getitem__.*fifth element"):
        list(loader)


def test_terminate_does_nothing_in_sync_mode():
    loader = DataLoader(Options(), numbers(4), 2)
    loader.terminate()
    assert len(values(loader)) == 2
