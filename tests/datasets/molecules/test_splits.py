"""Splits are reproducible, disjoint and complete."""

import json

import numpy as np
import pytest

from torchkiln.core import OptionsError, StoreError
from torchkiln.datasets import split_indices
from torchkiln.datasets.molecules._splits import choose_some, restrict


def sizes(splits):
    return [len(splits[name]) for name in ("train", "validation", "test")]


@pytest.mark.parametrize(
    ("splits", "expected"),
    [
        ("80/10/10", [104_665, 13_083, 13_083]),
        ("0.5,0.25,0.25", [65_417, 32_707, 32_707]),
        ((0.8, 0.1, 0.1), [104_665, 13_083, 13_083]),
        ([80, 10, 10], [104_665, 13_083, 13_083]),
        ((0.9, 0.1, 0), [117_748, 13_083, 0]),
        ("schnet", [110_000, 10_000, 10_831]),
        ((110_000, 10_000, 10_831), [110_000, 10_000, 10_831]),
    ],
)
def test_every_molecule_is_in_exactly_one_part(splits, expected):
    found = split_indices(130_831, splits, seed=4)
    assert sizes(found) == expected
    assert np.array_equal(np.sort(np.concatenate(list(found.values()))), np.arange(130_831))


def test_counts_may_leave_molecules_over():
    found = split_indices(1000, (100, 20, 30))
    assert sizes(found) == [100, 20, 30]
    assert len(np.unique(np.concatenate(list(found.values())))) == 150


def test_the_seed_decides():
    one, same, other = (split_indices(500, seed=seed) for seed in (1, 1, 2))
    for name in one:
        assert np.array_equal(one[name], same[name])
    assert not np.array_equal(one["test"], other["test"])
    assert one["train"].tolist() == sorted(one["train"].tolist())


@pytest.mark.parametrize("count", [3, 4, 7, 10])
def test_no_part_of_a_small_set_is_empty(count):
    assert min(sizes(split_indices(count))) >= 1


def test_ten_percent_are_ten_percent():
    assert sizes(split_indices(130, "80/10/10")) == [104, 13, 13]


@pytest.mark.parametrize(
    ("count", "splits", "words"),
    [
        (1000, "schnet", "110,000 molecules for training.*there are 1,000; use shares"),
        (100, (90, 20, 20), "takes 130 molecules, but there are 100"),
        (100, "80/10", "cannot use the split '80/10'; wanted is '80/10/10'"),
        (100, "most/some/few", "cannot read the split"),
        (100, "0/50/50", "cannot use the split"),
        (100, (0.5, 0.25, 0.1), "add up to 0.85 instead of 1 or 100"),
        (100, (0.5, -0.25, 0.75), "cannot use the split"),
        (0, "80/10/10", "no molecules to split"),
        (100, "missing.json", "there is no file missing.json"),
    ],
)
def test_splits_without_sense_are_refused(count, splits, words):
    with pytest.raises(OptionsError, match=words):
        split_indices(count, splits)


@pytest.mark.parametrize(
    "names", [("train", "validation", "test"), ("train_idx", "val_idx", "test_idx")]
)
@pytest.mark.parametrize("suffix", [".npz", ".json"])
def test_files_are_taken_as_they_are(tmp_path, names, suffix):
    parts = [[5, 1, 3], [0], []]
    path = tmp_path / f"split{suffix}"
    if suffix == ".npz":
        np.savez(
            path, **{n: np.array(p, dtype=np.int64) for n, p in zip(names, parts, strict=True)}
        )
    else:
        path.write_text(json.dumps(dict(zip(names, parts, strict=True))))
    for given in (path, str(path)):
        found = split_indices(6, given, seed=9)
        assert [part.tolist() for part in found.values()] == [[1, 3, 5], [0], []]
        assert list(found) == ["train", "validation", "test"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"train": [0], "validation": [1]}', "has no 'test' .it has 'train', 'validation'"),
        ('{"train": [0], "val": [0], "test": []}', "molecule 0 more than once"),
        ('{"train": [0], "val": [6], "test": []}', "'validation' of .* names molecule 6 of 6"),
        ('{"train": [0.5], "val": [1], "test": []}', "float64 .*not a list of indices"),
        ('{"train": [], "val": [1], "test": []}', "no molecules for training"),
        ("[0, 1]", "no lists of indices by name"),
        ('{"train": [0', "is no split"),
    ],
)
def test_a_wrong_file_is_named(tmp_path, content, words):
    path = tmp_path / "split.json"
    path.write_text(content)
    with pytest.raises(StoreError, match=words):
        split_indices(6, path)


def test_a_file_that_is_no_archive_is_named(tmp_path):
    path = tmp_path / "split.npz"
    path.write_bytes(b"junk")
    with pytest.raises(StoreError, match=r"split\.npz is no split"):
        split_indices(6, path)


def test_a_limit_takes_random_molecules_by_seed():
    some = choose_some(10_000, 100, seed=1)
    assert len(np.unique(some)) == 100
    assert some.max() > 5_000
    assert np.array_equal(some, choose_some(10_000, 100, seed=1))
    assert not np.array_equal(some, choose_some(10_000, 100, seed=2))
    assert choose_some(10, 100).tolist() == choose_some(10, None).tolist() == list(range(10))


@pytest.mark.parametrize("limit", [0, -3, True])
def test_a_limit_is_a_number_of_molecules(limit):
    with pytest.raises(OptionsError, match="limit must be"):
        choose_some(10, limit)


@pytest.mark.parametrize("seed", [-1, 0.5, None])
def test_a_seed_is_a_whole_number(seed):
    with pytest.raises(OptionsError, match="seed must be a whole number from 0 on"):
        split_indices(10, seed=seed)
    with pytest.raises(OptionsError, match="seed must be"):
        choose_some(10, 5, seed=seed)


def test_a_split_is_restricted_to_chosen_molecules():
    splits = {"train": np.array([1, 5, 7]), "validation": np.array([2, 3]), "test": np.array([9])}
    kept = restrict(splits, np.array([1, 3, 7, 8]))
    assert [part.tolist() for part in kept.values()] == [[0, 2], [1], []]
    with pytest.raises(OptionsError, match="none of the 2 molecules"):
        restrict(splits, np.array([2, 9]))
