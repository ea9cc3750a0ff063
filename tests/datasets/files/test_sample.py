"""The molecules that come with the package."""

import numpy as np
import pytest

from torchkiln import cli
from torchkiln.core import OptionsError, WriteError
from torchkiln.datasets import read_molecules, sample_molecules
from torchkiln.datasets.files._sample import write_sample

# Single-bonded hydrogen to the double bonds and rings of heavier atoms, in angstrom.
SHORTEST_BOND, LONGEST_BOND = 0.95, 1.60


def test_the_molecules_have_names_and_the_elements_of_qm9():
    molecules = sample_molecules()
    assert {"water", "methane", "ethanol", "benzene"} <= set(molecules.names)
    assert len(set(molecules.names)) == len(molecules)
    assert molecules.elements == [1, 6, 7, 8, 9]
    assert molecules.num_atoms.max() <= 29


def test_every_atom_is_bound_at_a_sensible_distance():
    molecules = sample_molecules()
    for begin, end in zip(molecules.offsets[:-1], molecules.offsets[1:], strict=True):
        pos = molecules.pos[begin:end]
        distances = np.linalg.norm(pos[:, None] - pos[None], axis=2)
        np.fill_diagonal(distances, np.inf)
        nearest = distances.min(axis=1)
        assert nearest.min() > SHORTEST_BOND
        assert nearest.max() < LONGEST_BOND


def test_the_command_writes_a_file_that_is_read_back(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["data", "sample"]) == 0
    printed = capsys.readouterr()
    assert printed.out == "molecules.xyz\n"
    assert "18 molecules: water, methane," in printed.err
    assert read_molecules("molecules.xyz").names == sample_molecules().names
    assert cli.main(["data", "sample"]) == 0, "writing the same file again is no mistake"


def test_another_file_of_that_name_is_left_alone(tmp_path, capsys):
    mine = tmp_path / "mine.xyz"
    mine.write_text("my own work")
    assert cli.main(["data", "sample", "--output", str(mine)]) == 2
    assert "exists and is another file" in capsys.readouterr().err
    assert mine.read_text() == "my own work"
    assert cli.main(["data", "sample", "--output", str(mine), "--force"]) == 0
    assert len(read_molecules(mine)) == 18


def test_places_that_cannot_be_written_are_named(tmp_path):
    with pytest.raises(OptionsError, match=r"must end in \.xyz or \.extxyz"):
        write_sample(tmp_path / "molecules.sdf")
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteError, match=r"molecules\.xyz cannot be written"):
        write_sample(tmp_path / "file" / "molecules.xyz")
