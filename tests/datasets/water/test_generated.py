import dataclasses

import numpy as np
import pytest
from _clusters import energies_of, some_clusters

from torchkiln.core import OptionsError, StoreError
from torchkiln.datasets._array_cache import data_dir
from torchkiln.datasets.water import _generated, load_water, prepare_water, water_molecules
from torchkiln.datasets.water import _subsets as subsets
from torchkiln.datasets.water._generated import generated_molecules, minima_of_size
from torchkiln.datasets.water._prepare import check_minima
from torchkiln.datasets.water._subsets import Subset

FEW = Subset("few", 6, test=True, train=True, max_per_size=None, generated_per_size=6)


@pytest.fixture(name="computed")
def computed_fixture(monkeypatch):
    """Sizes that were computed, in their order; the clusters are not physical, but quick."""
    sizes = []

    def generate(size, count, *, seed=0, bar=None):
        sizes.append(size)
        pos = some_clusters(size, count, seed)
        if bar is not None:
            bar.update(count)
        return pos, energies_of(pos), np.arange(count) // 3

    monkeypatch.setattr(_generated, "generate_minima", generate)
    return sizes


def test_generated_clusters_are_kept_size_by_size(computed):
    first = generated_molecules(FEW, progress=False)
    again = generated_molecules(FEW, progress=False)
    files = sorted(path.name for path in (data_dir() / "water").iterdir())
    assert computed == [3, 4, 5, 6]
    assert files == [f"q-tip4p-f_v1_seed0_W{size}_6.npz" for size in computed]
    assert len(first) == 24
    np.testing.assert_array_equal(first.pos, again.pos)
    np.testing.assert_array_equal(first.targets["energy"], again.targets["energy"])


def test_an_interrupted_generation_goes_on_where_it_was(computed, monkeypatch):
    whole = _generated.generate_minima

    def interrupted(size, *arguments, **keywords):
        if size == 5:
            raise KeyboardInterrupt
        return whole(size, *arguments, **keywords)

    monkeypatch.setattr(_generated, "generate_minima", interrupted)
    with pytest.raises(KeyboardInterrupt):
        generated_molecules(FEW, progress=False)
    monkeypatch.setattr(_generated, "generate_minima", whole)
    generated_molecules(FEW, progress=False)
    assert computed == [3, 4, 5, 6]


@pytest.mark.parametrize(("limit", "expected"), [(3, [1, 1, 1]), (9, [3, 2, 2, 2]), (99, [6] * 4)])
def test_a_limit_computes_no_more_than_needed(computed, limit, expected):
    molecules = generated_molecules(FEW, limit=limit, progress=False)
    files = [path.stem for path in (data_dir() / "water").iterdir()]
    counts = {int(name.split("_W")[1].split("_")[0]): int(name.split("_")[-1]) for name in files}
    assert np.bincount(molecules.num_atoms // 3)[3:].tolist() == expected
    assert [counts[size] for size in sorted(counts)] == expected
    assert len(computed) == len(expected)


def test_train_and_test_come_from_different_starts_and_are_all(computed):
    names = {"all": (True, True), "train": (False, True), "test": (True, False)}
    energies = {}
    for name, (test, train) in names.items():
        subset = dataclasses.replace(FEW, test=test, train=train, generated_per_size=90)
        molecules = generated_molecules(subset, progress=False)
        energies[name] = set(molecules.targets["energy"].tolist())
    assert computed == [3, 4, 5, 6]
    assert len(energies["test"]) == 4 * 9
    assert not energies["train"] & energies["test"]
    assert energies["train"] | energies["test"] == energies["all"]


def test_a_limited_test_set_is_full(computed):
    subset = dataclasses.replace(FEW, train=False, generated_per_size=800)
    assert len(generated_molecules(subset, limit=40, progress=False)) == 40
    assert computed == [3, 4, 5, 6]


def test_a_file_with_more_clusters_serves_smaller_wishes(monkeypatch):
    alone, walks = minima_of_size(6, 10, seed=1)
    for path in (data_dir() / "water").iterdir():
        path.unlink()
    minima_of_size(6, 30, seed=1)
    monkeypatch.delattr(_generated, "generate_minima")
    cut, cut_walks = minima_of_size(6, 10, seed=1)
    np.testing.assert_array_equal(cut.pos, alone.pos)
    np.testing.assert_array_equal(cut_walks, walks)


def test_water_is_ready_for_training():
    dataset = load_water("debug", limit=20, progress=False)
    train = dataset.splits["train"]
    assert (len(dataset), dataset.target, dataset.unit) == (20, "energy", "kcal/mol")
    assert {name: len(part) for name, part in dataset.splits.items()} == {
        "train": 16,
        "validation": 2,
        "test": 2,
    }
    assert dataset.molecules.elements == [1, 8]
    learned = np.array([float(graph.y) for graph in dataset.split("train")])
    assert abs(learned.mean()) < 1e-6
    np.testing.assert_allclose(dataset.restore(learned, train), dataset.values[train], atol=1e-4)
    assert (dataset.store.sizes["edges"] > 0).all()


def test_other_seeds_are_other_clusters():
    first = water_molecules("debug", limit=8, progress=False)
    other = water_molecules("debug", limit=8, generator_seed=1, progress=False)
    assert len(first) == len(other) == 8
    assert not np.array_equal(first.pos, other.pos)
    with pytest.raises(OptionsError, match="generator_seed must not be negative, got -1"):
        water_molecules("debug", generator_seed=-1)


def test_preparing_says_what_there_is_and_where(monkeypatch):
    monkeypatch.setitem(subsets._SUBSETS, "debug", FEW)
    lines = []
    folder = prepare_water("debug", progress=False, say=lines.append)
    molecules = water_molecules("debug", progress=False)
    assert folder == data_dir() / "water"
    assert lines[0].startswith(f"water (debug): {len(molecules)} clusters of 3 to 6 molecules")
    assert lines[1].startswith("checked: energies agree to ")
    assert lines[2].startswith("4 files, ")
    assert lines[2].endswith(f" MB in {folder}")


def test_a_cluster_that_is_no_minimum_fails_the_check():
    molecules = water_molecules("debug", limit=4, progress=False)
    check_minima(molecules)
    molecules.pos[0] += 0.01
    with pytest.raises(StoreError, match="1 generated clusters are wrong; the first, W3_0"):
        check_minima(molecules)


@pytest.mark.slow
def test_debug_is_large_enough_for_a_first_training():
    molecules = water_molecules("debug", progress=False)
    sizes = np.bincount(molecules.num_atoms // 3)
    assert len(molecules) > 800
    assert (sizes[8:11] == 200).all()


def test_a_damaged_file_of_many_is_made_anew_as_large(computed):
    minima_of_size(5, 12)
    (path,) = (data_dir() / "water").iterdir()
    path.write_bytes(b"PK")
    with pytest.warns(UserWarning, match="is damaged"):
        assert len(minima_of_size(5, 3)[0]) == 3
    assert len(minima_of_size(5, 12)[0]) == 12
    assert computed == [5, 5]
