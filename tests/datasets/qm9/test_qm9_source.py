import importlib.util
import shutil

import numpy as np
import pytest

from torchkiln.core import StoreError
from torchkiln.datasets.qm9._source import PARTS, find_source, read_chunks


@pytest.fixture
def tables(qm9_tables, tmp_path):
    return shutil.copytree(qm9_tables, tmp_path / "tables")


def test_the_first_molecule_is_methane_as_published(qm9_tables):
    table = next(read_chunks(qm9_tables))
    assert table.index[0] == 1
    assert table.smiles[0] == "C"
    assert table.z[:5].tolist() == [6, 1, 1, 1, 1]
    assert table.offsets[:3].tolist() == [0, 5, 9]
    assert table.pos[0].tolist() == [-0.0126981359, 1.0858041578, 0.0080009958]
    assert table.properties[0, [0, 3, 4, -1]].tolist() == [157.7118, 0.0, 13.21, 6.469]


def test_all_tables_are_read_in_order(qm9_tables):
    index = np.concatenate([table.index for table in read_chunks(qm9_tables)])
    assert len(index) == sum(len((qm9_tables / p).read_text().splitlines()) - 1 for p in PARTS)
    assert (np.diff(index) > 0).all()
    assert index[-1] == 133859


def test_the_installed_package_is_found_without_importing_it(qm9_tables):
    import sys

    assert (find_source() / PARTS[0]).is_file()
    assert "qm9pack" not in sys.modules


def test_a_missing_package_names_the_remedy(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(StoreError, match=r"pip install qm9pack.*torchkiln\[qm9\].*--source"):
        find_source()


def test_a_folder_without_the_tables_is_named(tmp_path):
    with pytest.raises(StoreError, match=rf"{tmp_path} holds no qm9_part1.csv"):
        find_source(tmp_path)


def change(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("XYZ_file,Index", "Index,XYZ_file", "has the columns"),
        ('"InChI=1S/CH4/h1H4",5,', '"InChI=1S/CH4/h1H4,5,', "a row is cut"),
        ("[-0.0126981359,", "[spam,", "not a table of numbers"),
        ("[-0.0126981359,", "[", "not a table of numbers"),
        ("['C','H','H','H','H']", "['C','H','H','H']", "atoms are announced"),
        ("['C','H','H','H','H']", "['S','H','H','H','H']", "atoms are announced"),
    ],
)
def test_damaged_tables_are_refused_with_their_place(tables, old, new, message):
    change(tables / PARTS[0], old, new)
    with pytest.raises(StoreError, match=message) as refused:
        list(read_chunks(tables))
    place = f"{PARTS[0]} has" if old.startswith("XYZ") else f"{PARTS[0]}, line 2: "
    assert place in str(refused.value)


def test_the_line_of_a_damaged_row_is_named(tables):
    rows = (tables / PARTS[0]).read_text().splitlines(keepends=True)
    rows[40] = rows[40][: len(rows[40]) // 2] + "\n"
    (tables / PARTS[0]).write_text("".join(rows))
    with pytest.raises(StoreError, match=r"qm9_part1\.csv, line 41: a row is cut"):
        list(read_chunks(tables))


def test_a_table_cut_inside_its_last_number_is_refused(tables):
    path = tables / PARTS[1]
    path.write_text(path.read_text()[:-3])
    lines = len(path.read_text().splitlines())
    with pytest.raises(StoreError, match=rf"qm9_part2\.csv, line {lines}: the file is cut off"):
        list(read_chunks(tables))
