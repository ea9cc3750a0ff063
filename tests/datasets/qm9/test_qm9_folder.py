"""The same molecules come out of every form that a user may have them in."""

import json
import zipfile

import numpy as np
import pytest
import torch

from torchkiln.core import StoreError
from torchkiln.datasets import QM9_TARGETS, qm9_molecules, write_qm9_root
from torchkiln.datasets.qm9._molecules import to_molecules

LIMIT = 60
MANIFEST = "torchkiln-qm9.json"
XYZ = "3\nenergy=-76.4\nO 0 0 0\nH 0 0.76 0.59\nH 0 -0.76 0.59\n"


@pytest.fixture(scope="module")
def expected(molecules):
    return to_molecules(molecules.first(LIMIT), "tables")


@pytest.fixture(scope="module")
def written(qm9_tables, tmp_path_factory):
    folder = tmp_path_factory.mktemp("written")
    # The folder of the data directory is set for single tests only.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHKILN_DATA_DIR", str(folder / "data"))
        return write_qm9_root(folder / "QM9", source=qm9_tables, limit=LIMIT, progress=False)


@pytest.fixture
def root(written, tmp_path):
    """A root of PyG's QM9 that a test may change, as if it came from elsewhere."""
    for path in written.rglob("*"):
        if path.is_file() and path.name != MANIFEST:
            copy = tmp_path / "QM9" / path.relative_to(written)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    return tmp_path / "QM9"


def assert_same(found, expected, *, rtol):
    assert found.names == expected.names
    assert found.z.tolist() == expected.z.tolist()
    assert found.offsets.tolist() == expected.offsets.tolist()
    np.testing.assert_allclose(found.pos, expected.pos, rtol=0, atol=rtol * 20)
    assert list(found.targets) == list(QM9_TARGETS)
    for target in QM9_TARGETS:
        np.testing.assert_allclose(found.targets[target], expected.targets[target], rtol=rtol)


def test_tables_in_a_folder(qm9_tables, expected):
    found = qm9_molecules(qm9_tables, progress=False)
    assert found.source == str(qm9_tables)
    assert_same(found.first(LIMIT), expected, rtol=0)


def test_raw_files_of_pyg_are_exact(root, expected):
    found = qm9_molecules(root, progress=False)
    assert found.source.endswith("raw/gdb9.sdf")
    assert_same(found, expected, rtol=0)
    assert_same(qm9_molecules(str(root / "raw"), progress=False), expected, rtol=0)


def test_processed_files_of_pyg_are_rounded_and_say_so(root, expected):
    (root / "raw/gdb9.sdf").unlink()
    with pytest.warns(UserWarning, match="energies in float32"):
        found = qm9_molecules(root, progress=False)
    assert_same(found, expected, rtol=3e-7)


def test_molecules_on_the_list_are_left_out(root, expected):
    path = root / "raw/uncharacterized.txt"
    lines = path.read_text().split("\n")
    path.write_text("\n".join([*lines[:9], "       2   some text", *lines[9:]]))
    found = qm9_molecules(root, progress=False)
    assert found.names == [name for name in expected.names if name != "gdb_2"]


def test_a_missing_list_is_said(root):
    (root / "raw/uncharacterized.txt").unlink()
    with pytest.warns(UserWarning, match=r"uncharacterized\.txt.*not left out"):
        assert len(qm9_molecules(root, progress=False)) == LIMIT


def cut(path, share):
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])


def test_damaged_files_are_named_with_the_line(root):
    cut(root / "raw/gdb9.sdf.csv", 0.5)
    with pytest.raises(StoreError, match=r"gdb9\.sdf\.csv(, line \d+| has no row)"):
        qm9_molecules(root, progress=False)
    cut(root / "raw/gdb9.sdf", 0.5)
    with pytest.raises(StoreError, match=r"gdb9\.sdf, line \d+"):
        qm9_molecules(root, progress=False)
    (root / "raw/gdb9.sdf.csv").unlink()
    with pytest.raises(StoreError, match=r"gdb9\.sdf\.csv is missing"):
        qm9_molecules(root, progress=False)


def test_a_wrong_line_of_the_list_is_named(root):
    path = root / "raw/uncharacterized.txt"
    lines = path.read_text().split("\n")
    path.write_text("\n".join([*lines[:9], "none", *lines[9:]]))
    with pytest.raises(StoreError, match=r"uncharacterized\.txt, line 10: the number"):
        qm9_molecules(root, progress=False)


@pytest.mark.parametrize("name", ["gdb9.sdf", "gdb9.sdf.csv", "uncharacterized.txt"])
def test_what_torchkiln_wrote_is_compared_with_its_checksums(root, written, name):
    path = root / "raw" / name
    content = path.read_bytes()
    place = len(content) // 2
    path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
    (root / MANIFEST).write_bytes((written / MANIFEST).read_bytes())
    with pytest.raises(StoreError, match=rf"{name} is damaged: .*torchkiln data qm9 --root"):
        qm9_molecules(root, progress=False)


def test_a_manifest_without_a_checksum_still_counts(root, written):
    content = json.loads((written / MANIFEST).read_bytes())["content"]
    (root / MANIFEST).write_text(json.dumps(content))
    assert len(qm9_molecules(root, progress=False)) == LIMIT
    (root / "raw/gdb9.sdf.csv").write_text("changed")
    with pytest.raises(StoreError, match="is damaged"):
        qm9_molecules(root, progress=False)


def test_a_flipped_bit_in_the_processed_file_is_noticed(root):
    path = root / "processed/data_v3.pt"
    (root / "raw/gdb9.sdf").unlink()
    with zipfile.ZipFile(path) as archive:
        largest = max(archive.infolist(), key=lambda member: member.file_size)
    content = bytearray(path.read_bytes())
    content[largest.header_offset + largest.file_size // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"data_v3\.pt is cut off"):
        qm9_molecules(root, progress=False)


class Intruder:
    def __reduce__(self):
        return print, ("executed",)


@pytest.mark.parametrize("kind", ["cut", "code", "foreign"])
def test_a_damaged_processed_file_is_refused(root, kind, capsys):
    path = root / "processed/data_v3.pt"
    (root / "raw/gdb9.sdf").unlink()
    if kind == "cut":
        cut(path, 0.7)
    elif kind == "code":
        torch.save(Intruder(), path)
    else:
        torch.save(({"x": torch.ones(1)}, {}), path)
    with pytest.raises(StoreError, match=r"data_v3\.pt is cut off or not what .*anew"):
        qm9_molecules(root, progress=False)
    assert "executed" not in capsys.readouterr().out


def test_one_file_of_structures(tmp_path):
    path = tmp_path / "water.xyz"
    path.write_text(XYZ)
    found = qm9_molecules(path, progress=False)
    assert found.targets["energy"].tolist() == [-76.4]
    (tmp_path / "water.csv").write_text("gap\n7.5\n")
    found = qm9_molecules(path, progress=False)
    assert {name: values.tolist() for name, values in found.targets.items()} == {
        "energy": [-76.4],
        "gap": [7.5],
    }


def test_a_folder_of_structures_is_read_in_order_of_names(tmp_path):
    (tmp_path / "b.xyz").write_text(XYZ)
    (tmp_path / "a.extxyz").write_text(XYZ.replace("-76.4", "-70.0") * 2)
    (tmp_path / "notes.txt").write_text("not a structure")
    found = qm9_molecules(tmp_path, progress=False)
    assert found.names == ["a 1", "a 2", "b"]
    assert found.targets["energy"].tolist() == [-70.0, -70.0, -76.4]
    assert found.source == str(tmp_path)


def write_published(folder, arrays):
    """Write molecules as QM9 was published: one file each."""
    folder.mkdir()
    symbols = {1: "H", 6: "C", 7: "N", 8: "O", 9: "F"}
    for i, index in enumerate(arrays.index.tolist()):
        atoms = slice(arrays.offsets[i], arrays.offsets[i + 1])
        properties = "\t".join(map(repr, arrays.targets[i, :15].tolist()))
        rows = [
            "\t".join([symbols[z], *(repr(x).replace("e", "*^") for x in position), "-0.5"])
            for z, position in zip(
                arrays.z[atoms].tolist(), arrays.pos[atoms].tolist(), strict=True
            )
        ]
        lines = [
            str(len(rows)),
            f"gdb {index}\t{properties}\t",
            *rows,
            "1.0\t2.0",
            "C\tC",
            "InChI=1S",
        ]
        (folder / f"dsgdb9nsd_{index:06}.xyz").write_text("\n".join(lines) + "\n")
    return folder


def test_published_xyz_files_are_exact(molecules, expected, tmp_path):
    folder = write_published(tmp_path / "xyz", molecules.first(LIMIT))
    with pytest.warns(UserWarning, match="not left out"):
        found = qm9_molecules(folder, progress=False)
    assert_same(found, expected, rtol=0)


@pytest.mark.parametrize(
    ("line", "text", "words"),
    [
        (0, "five", "line 1: the number of atoms"),
        (1, "gdb 3 1.0", "line 2: 'gdb', a number and 15 properties"),
        (2, "O 1.0 2.0", "line 3: one of .* and three coordinates"),
        (2, "Xx 1.0 2.0 3.0", "line 3: one of"),
        (2, "O 1.0 2.0 nan", "line 3: one of"),
        (5, None, "line 5: the file is cut off; line 1 promises 3 atoms"),
    ],
)
def test_damaged_xyz_files_are_named(molecules, tmp_path, line, text, words):
    path = write_published(tmp_path / "xyz", molecules.first(3)) / "dsgdb9nsd_000003.xyz"
    lines = path.read_text().splitlines()
    lines = lines[:line] if text is None else [*lines[:line], text, *lines[line + 1 :]]
    path.write_text("\n".join(lines))
    with pytest.raises(StoreError, match=rf"000003\.xyz, {words}"):
        qm9_molecules(path.parent, progress=False)


def test_nothing_to_read_says_what_could_be(tmp_path):
    with pytest.raises(StoreError, match="holds nothing to read; wanted are the tables of qm9pack"):
        qm9_molecules(tmp_path)
    with pytest.raises(StoreError, match="there is no file or folder"):
        qm9_molecules(tmp_path / "missing")
    (tmp_path / "qm9_part1.csv").touch()
    with pytest.raises(StoreError, match=r"holds no qm9_part2\.csv"):
        qm9_molecules(tmp_path)
