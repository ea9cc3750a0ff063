import numpy as np
import pytest
from _clusters import energies_of, some_clusters, xyz_text

from torchkiln.core import OptionsError, StoreError
from torchkiln.datasets.water import load_water, water_molecules
from torchkiln.datasets.water._release import read_numbered

COUNTS = {3: 12, 4: 25, 5: 40, 12: 11}


def write_release(folder, counts=COUNTS):
    for size, count in counts.items():
        pos = some_clusters(size, count)
        text = xyz_text(pos, energies_of(pos))
        (folder / f"W{size}_geoms_all.xyz").write_text(text, newline="")


@pytest.fixture(name="release")
def release_fixture(tmp_path):
    write_release(tmp_path)
    return tmp_path


def sizes_of(molecules):
    sizes, counts = np.unique(molecules.num_atoms // 3, return_counts=True)
    return dict(zip(sizes.tolist(), counts.tolist(), strict=True))


def test_all_has_every_cluster_small_ones_first(release):
    molecules = water_molecules("all", root=release, progress=False)
    assert sizes_of(molecules) == COUNTS
    assert (np.diff(molecules.num_atoms) >= 0).all()
    assert molecules.names[12] == "W4_0"
    expected = energies_of(some_clusters(4, 25))
    np.testing.assert_allclose(molecules.targets["energy"][12:37], expected, atol=1e-7)


def test_train_and_test_share_nothing_and_are_all(release):
    parts = {
        name: water_molecules(name, root=release, progress=False)
        for name in ("train", "test", "all")
    }
    assert sizes_of(parts["test"]) == {3: 1, 4: 2, 5: 4, 12: 1}
    energies = {name: set(part.targets["energy"].tolist()) for name, part in parts.items()}
    assert not energies["train"] & energies["test"]
    assert energies["train"] | energies["test"] == energies["all"]


def test_debug_has_small_clusters_only(release):
    assert sizes_of(water_molecules("debug", root=release, progress=False)) == {3: 12, 4: 25, 5: 40}


@pytest.mark.parametrize(
    ("limit", "expected"),
    [(8, {3: 2, 4: 2, 5: 2, 12: 2}), (60, {3: 12, 4: 19, 5: 18, 12: 11}), (1000, COUNTS)],
)
def test_a_limit_takes_evenly_from_all_sizes(release, limit, expected):
    molecules = water_molecules("all", root=release, limit=limit, progress=False)
    assert sizes_of(molecules) == expected


def test_a_limit_does_not_read_what_it_does_not_need(release):
    with (release / "W5_geoms_all.xyz").open("a") as file:
        file.write("damaged beyond the limit\n" * 10)
    with pytest.raises(StoreError, match=r"W5_geoms_all.xyz, line 681: expected the number"):
        water_molecules("all", root=release, progress=False)
    assert len(water_molecules("all", root=release, limit=8, progress=False)) == 8


def test_an_unknown_subset_and_an_empty_one_are_refused(tmp_path):
    with pytest.raises(OptionsError, match="'tiny'; choose from debug, test, train, all"):
        water_molecules("tiny")
    with pytest.raises(OptionsError, match="limit must be at least 1, got 0"):
        water_molecules("debug", limit=0)
    write_release(tmp_path, {12: 3})
    with pytest.raises(StoreError, match="none for the subset 'debug'"):
        water_molecules("debug", root=tmp_path, progress=False)


def test_a_split_file_chooses_and_splits_the_clusters(tmp_path):
    counts = {3: 5, 4: 6, 5: 7}
    write_release(tmp_path, counts)
    np.savez(tmp_path / "split_00_small.npz", train_idx=[0, 4, 5, 17], val_idx=[10, 11])
    dataset = load_water("all", root=tmp_path, splits="split_00_small.npz", progress=False)
    everything = np.concatenate([energies_of(some_clusters(n, c)) for n, c in counts.items()])
    np.testing.assert_allclose(dataset.values, everything[[0, 4, 5, 10, 11, 17]], atol=1e-7)
    assert {name: part.tolist() for name, part in dataset.splits.items()} == {
        "train": [0, 1, 2, 5],
        "validation": [3, 4],
        "test": [],
    }
    with pytest.raises(OptionsError, match="use the subset 'all' without a limit"):
        load_water("train", root=tmp_path, splits="split_00_small.npz", progress=False)


def test_numbers_through_all_sizes_need_all_files(release, tmp_path):
    with pytest.raises(StoreError, match="lacks W6"):
        read_numbered(release, np.array([3]), progress=False)
    for size in (4, 5, 12):
        (tmp_path / f"W{size}_geoms_all.xyz").unlink()
    assert len(read_numbered(release, np.array([3, 11]), progress=False)) == 2
    with pytest.raises(StoreError, match=r"names cluster 12, but .* has only 12"):
        read_numbered(release, np.array([3, 12]), progress=False)
