"""Large files are read once, and again when they changed."""

import os

import numpy as np
import pytest
from _random_molecules import random_molecules

from torchkiln.datasets import qm9_molecules
from torchkiln.datasets._array_cache import kept_files
from torchkiln.datasets.files import _kept as module
from torchkiln.datasets.files._kept import kept_molecules


@pytest.fixture
def readings(tmp_path, monkeypatch):
    """A file that is worth keeping, and how often it was read."""
    monkeypatch.setattr(module, "_WORTH_BYTES", 10)
    path = tmp_path / "molecules.xyz"
    path.write_text("more than ten bytes")
    counted = []

    def read():
        counted.append(1)
        return random_molecules()

    return path, read, counted


def test_everything_comes_back_from_the_data_directory(readings):
    path, read, counted = readings
    first, again = kept_molecules([path], read), kept_molecules([path], read)
    assert len(counted) == 1
    assert (again.names, again.source) == (first.names, first.source)
    assert list(again.targets) == list(first.targets)
    for name in ("offsets", "z", "pos"):
        np.testing.assert_array_equal(getattr(again, name), getattr(first, name))
    for name, values in first.targets.items():
        np.testing.assert_array_equal(again.targets[name], values)
    # Where `torchkiln data clear` finds it.
    assert len(kept_files("qm9")) == 1


def test_a_changed_file_is_read_again(readings):
    path, read, counted = readings
    kept_molecules([path], read)
    os.utime(path, ns=(1, 1))
    kept_molecules([path], read)
    assert len(counted) == 2
    path.write_text("more than twenty bytes")
    os.utime(path, ns=(1, 1))
    kept_molecules([path], read)
    assert len(counted) == 3


def test_small_files_are_not_kept(readings):
    path, read, counted = readings
    path.write_text("short")
    for _ in range(2):
        kept_molecules([path], read)
    assert len(counted) == 2
    assert kept_files("qm9") == []


def test_molecules_without_names_and_targets_are_kept_too(readings):
    path, _, _ = readings
    bare = random_molecules(3)
    bare = type(bare)(bare.offsets, bare.z, bare.pos)
    for _ in range(2):
        found = kept_molecules([path], lambda: bare)
        assert (found.names, dict(found.targets)) == (None, {})


def test_a_table_that_changed_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_WORTH_BYTES", 10)
    (tmp_path / "atom.xyz").write_text("1\n\nH 0 0 0\n")
    (tmp_path / "atom.csv").write_text("energy\n-0.5\n")
    assert qm9_molecules(tmp_path, progress=False).targets["energy"].tolist() == [-0.5]
    (tmp_path / "atom.csv").write_text("energy\n-13.6\n")
    assert qm9_molecules(tmp_path, progress=False).targets["energy"].tolist() == [-13.6]
