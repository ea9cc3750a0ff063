import gzip

import numpy as np
import pytest

from torchkiln.core import OptionsError, StoreError
from torchkiln.datasets import Molecules
from torchkiln.datasets.files._read import read_molecules
from torchkiln.datasets.files._write import write_csv, write_extxyz
from torchkiln.datasets.qm9._raw import write_sdf

ATOM = "1\n\nHe 0 0 0\n"


def random_molecules(count=20):
    random = np.random.default_rng(0)
    sizes = random.integers(1, 9, count)
    atoms = int(sizes.sum())
    return Molecules(
        offsets=np.concatenate([[0], np.cumsum(sizes)]),
        z=random.integers(1, 119, atoms),
        pos=random.normal(size=(atoms, 3)) * 10.0 ** random.integers(-5, 5, (atoms, 1)),
        names=[f'number "{i}" \\ {i}' if i % 3 else "" for i in range(count)],
        targets={"U0": random.normal(size=count) * 1e4},
    )


def test_extended_xyz_gives_back_every_bit(tmp_path):
    molecules = random_molecules()
    predicted = np.where(np.arange(20) % 2, molecules.targets["U0"], np.nan)
    write_extxyz(tmp_path / "all.extxyz", molecules, {"predicted U0": predicted})
    got = read_molecules(tmp_path / "all.extxyz")
    for name in ("offsets", "z", "pos"):
        np.testing.assert_array_equal(getattr(got, name), getattr(molecules, name))
    assert got.names == molecules.names
    np.testing.assert_array_equal(got.targets["U0"], molecules.targets["U0"])
    np.testing.assert_array_equal(got.targets["predicted_U0"], predicted)


def test_ase_reads_what_we_write(tmp_path):
    io = pytest.importorskip("ase.io", reason="ase is an optional extra (pip install ase)")
    molecules = random_molecules()
    write_extxyz(tmp_path / "all.extxyz", molecules)
    frames = io.read(tmp_path / "all.extxyz", ":")
    assert [len(frame) for frame in frames] == molecules.num_atoms.tolist()
    np.testing.assert_array_equal(np.concatenate([frame.numbers for frame in frames]), molecules.z)
    positions = np.concatenate([frame.positions for frame in frames])
    np.testing.assert_allclose(positions, molecules.pos, rtol=1e-15)
    assert [frame.info["U0"] for frame in frames] == molecules.targets["U0"].tolist()


def test_what_ase_writes_is_read_as_ase_means_it(tmp_path):
    ase = pytest.importorskip("ase", reason="ase is an optional extra (pip install ase)")
    io = pytest.importorskip("ase.io", reason="ase is an optional extra (pip install ase)")
    calculators = pytest.importorskip("ase.calculators.singlepoint", reason="part of ase")
    random = np.random.default_rng(0)
    frames = []
    for size in (1, 4, 9):
        numbers, positions = random.integers(1, 100, size), random.normal(size=(size, 3))
        frame = ase.Atoms(numbers, positions, info={"gap": float(size), "label": "some text"})
        frame.calc = calculators.SinglePointCalculator(
            frame, energy=-1.5 * size, forces=random.normal(size=(size, 3))
        )
        frames.append(frame)
    for name in ("frames.extxyz", "frames.xyz"):
        io.write(tmp_path / name, frames)
        got = read_molecules(tmp_path / name)
        assert got.num_atoms.tolist() == [1, 4, 9]
        assert got.z.tolist() == [number for frame in frames for number in frame.numbers]
        expected = np.concatenate([frame.positions for frame in frames])
        np.testing.assert_allclose(got.pos, expected, rtol=0, atol=1e-7)  # ase writes 8 decimals
    assert read_molecules(tmp_path / "frames.extxyz").targets["energy"].tolist() == [
        -1.5,
        -6,
        -13.5,
    ]
    assert read_molecules(tmp_path / "frames.extxyz").targets["gap"].tolist() == [1, 4, 9]


def test_qm9_as_sdf_gives_back_every_bit(tmp_path, molecules):
    molecules = molecules.first(150)
    write_sdf(molecules, tmp_path / "gdb9.sdf")
    with pytest.warns(UserWarning, match="have no atoms"):
        got = read_molecules(tmp_path / "gdb9.sdf")
    for name in ("offsets", "z", "pos"):
        np.testing.assert_array_equal(getattr(got, name), getattr(molecules, name))
    assert got.names == [f"gdb_{index}" for index in molecules.index]


@pytest.mark.usefixtures("watched")
def test_packed_files_are_read_as_they_are(tmp_path, capfd):
    (tmp_path / "a.xyz.gz").write_bytes(gzip.compress(ATOM.encode()))
    (tmp_path / "b.XYZ").write_bytes(gzip.compress(ATOM.encode()))
    assert read_molecules(tmp_path / "a.xyz.gz", progress=True).z.tolist() == [2]
    assert read_molecules(str(tmp_path / "b.XYZ")).z.tolist() == [2]
    assert "Reading a.xyz.gz" in capfd.readouterr().err


def test_published_files_of_qm9_have_its_targets(tmp_path):
    properties = "\t".join(str(float(i)) for i in range(15))
    lines = ["1", f"gdb 5\t{properties}", "N\t0\t0\t1.5*^-6\t-0.7", "1.0\t2.0", "N\tN", "InChI=1"]
    (tmp_path / "dsgdb9nsd_000005.xyz").write_text("\n".join(lines))
    molecules = read_molecules(tmp_path / "dsgdb9nsd_000005.xyz")
    assert molecules.names == ["gdb_5"]
    assert molecules.pos.tolist() == [[0, 0, 1.5e-6]]
    assert molecules.targets["mu"].tolist() == [3.0]


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.pdb", ATOM.encode(), r"unknown suffix '\.pdb'; known are \.xyz, \.extxyz, \.sdf"),
        ("a", ATOM.encode(), "unknown suffix ''"),
        ("a.xyz", b"", "is empty"),
        ("a.sdf", b" \n\n", "is empty"),
        ("a.xyz", bytes(range(256)) * 9, "is a binary file"),
        ("a.xyz", ATOM.encode("utf-16"), "is a binary file .or UTF-16"),
        ("a.xyz.gz", gzip.compress(ATOM.encode() * 9999)[:-40], "compressed data are damaged"),
        ("a.xyz.gz", gzip.compress(b"", mtime=0), "is empty"),
    ],
)
def test_other_files_are_refused(tmp_path, name, content, reason):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(StoreError, match=reason) as caught:
        read_molecules(tmp_path / name)
    assert str(tmp_path / name) in str(caught.value)


def test_missing_files_and_folders_are_refused(tmp_path):
    with pytest.raises(StoreError, match=r"none\.xyz cannot be read: No such file"):
        read_molecules(tmp_path / "none.xyz")
    (tmp_path / "folder.xyz").mkdir()
    with pytest.raises(StoreError, match="is a folder; name the files in it"):
        read_molecules(tmp_path / "folder.xyz")


def test_predictions_must_fit_the_molecules(tmp_path):
    molecules = random_molecules()
    with pytest.raises(OptionsError, match="one number each"):
        write_extxyz(tmp_path / "a.xyz", molecules, {"p": np.zeros(3)})
    with pytest.raises(OptionsError, match="'U0' is a target"):
        write_extxyz(tmp_path / "a.xyz", molecules, {"U0": np.zeros(20)})
    assert not list(tmp_path.iterdir())


def test_tables_are_plain_csv(tmp_path):
    write_csv(tmp_path / "t.csv", {"name": ['a,"b"', ""], "x": [0.1, float("nan")]})
    assert (tmp_path / "t.csv").read_text() == 'name,x\n"a,""b""",0.1\n,\n'


def test_a_failed_write_leaves_the_old_file(tmp_path):
    (tmp_path / "t.csv").write_text("old")
    with pytest.raises(ValueError, match="shorter"):
        write_csv(tmp_path / "t.csv", {"a": [1, 2], "b": [1]})
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]
