"""Tables of targets beside files of structures."""

import dataclasses

import numpy as np
import pytest
from _random_molecules import random_molecules

from torchkiln.core import StoreError
from torchkiln.datasets import QM9_TARGETS
from torchkiln.datasets.files._target_table import read_target_table, table_beside, with_table
from torchkiln.datasets.molecules._published_targets import TARGET_COLUMNS


def write(tmp_path, text):
    path = tmp_path / "molecules.csv"
    path.write_text(text)
    return path


def test_numbers_become_columns_and_the_first_text_the_name(tmp_path):
    table = read_target_table(write(tmp_path, "id,name,smiles,gap\n1,water,O,7.5\n2,ammonia,N,\n"))
    assert table.names == ["water", "ammonia"]
    assert list(table.columns) == ["id", "gap"]
    np.testing.assert_array_equal(table.columns["gap"], [7.5, np.nan])


def test_the_published_table_comes_in_pygs_units(tmp_path):
    header = ",".join(("mol_id", *TARGET_COLUMNS))
    values = ",".join(str(number) for number in range(19))
    table = read_target_table(write(tmp_path, f"{header}\ngdb_1,{values}\n"))
    assert list(table.columns) == list(QM9_TARGETS)
    assert table.columns["mu"].tolist() == [3.0]
    assert table.columns["U0"].tolist() == [10 * 27.211386246]
    assert table.columns["U0_atom"].tolist() == [15 * 0.04336414]
    assert table.columns["A"].tolist() == [0.0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "line 1: a header"),
        ("name,gap\n", "line 1: a header"),
        ("name,gap\na,1\nb\n", "line 3: 1 cells, but the header has 2; the file may be cut"),
        ("name,gap\na,1\nb,many\n", "line 3: 'gap' is 'many', not a number"),
        ("name,kind\na,x\n", "line 2: there is no number"),
    ],
)
def test_a_wrong_table_names_its_line(tmp_path, text, words):
    with pytest.raises(StoreError, match=rf"molecules\.csv, {words}"):
        read_target_table(write(tmp_path, text))


def test_a_table_that_is_no_text_is_named(tmp_path):
    path = tmp_path / "molecules.csv"
    path.write_bytes(b"\xff\xfe\x00\x00")
    with pytest.raises(StoreError, match=r"molecules\.csv is no table of targets"):
        read_target_table(path)


def test_rows_are_found_by_name_in_any_order(tmp_path):
    molecules = random_molecules(3)
    rows = "molecule 2,2\nother,9\nmolecule 0,0\nmolecule 1,1\n"
    table = read_target_table(write(tmp_path, f"name,gap\n{rows}"))
    assert with_table(molecules, table).targets["gap"].tolist() == [0.0, 1.0, 2.0]


def test_rows_without_names_are_taken_in_order(tmp_path):
    table = read_target_table(write(tmp_path, "gap\n5\n6\n7\n\n"))
    assert with_table(random_molecules(3), table).targets["gap"].tolist() == [5.0, 6.0, 7.0]
    other = read_target_table(write(tmp_path, "label,gap\na,5\nb,6\nc,7\n"))
    assert with_table(random_molecules(3), other).targets["gap"].tolist() == [5.0, 6.0, 7.0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("gap\n5\n6\n", "has 2 rows for 3 molecules of random numbers"),
        ("name,gap\nmolecule 0,5\nmolecule 1,5\nx,5\n", "no row for the molecule 'molecule 2'"),
        ("name,gap\nx,5\n", r"no row for the molecule 'molecule 0' .*\(3 of 3 are missing\)"),
    ],
)
def test_a_molecule_without_a_row_is_an_error(tmp_path, text, words):
    table = read_target_table(write(tmp_path, text))
    with pytest.raises(StoreError, match=words):
        with_table(random_molecules(3), table)


def test_a_table_belongs_to_the_file_of_its_name(tmp_path):
    for name in ("a.csv", "b.xyz.csv", "b.csv"):
        (tmp_path / name).touch()
    assert table_beside(tmp_path / "a.xyz.gz") == tmp_path / "a.csv"
    assert table_beside(tmp_path / "b.xyz") == tmp_path / "b.xyz.csv"
    assert table_beside(tmp_path / "c.xyz") is None


def test_a_name_that_stands_in_several_rows_is_no_name(tmp_path):
    molecules = dataclasses.replace(random_molecules(3), names=["a", "b", "b"])
    table = read_target_table(write(tmp_path, "name,gap\nb,5\na,6\nb,7\n"))
    with pytest.raises(StoreError, match="has 2 rows for 'b'"):
        with_table(molecules, table)


def test_names_that_repeat_themselves_in_the_order_of_the_molecules_are_taken_so(tmp_path):
    molecules = dataclasses.replace(random_molecules(3), names=["a", "b", "b"])
    table = read_target_table(write(tmp_path, "name,gap\na,5\nb,6\nb,7\n"))
    assert with_table(molecules, table).targets["gap"].tolist() == [5.0, 6.0, 7.0]
