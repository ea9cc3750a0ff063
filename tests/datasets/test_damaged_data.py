"""Every reader of a dataset names damaged, deep, binary, empty or boastful files.

What a reader takes must be right; what it does not take is a `StoreError` with the file's name.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import re
import shutil
import tarfile
import tracemalloc
import warnings
import zipfile

import h5py
import numpy as np
import pytest
import torch
from _damage import claiming, damaged, deep_json, npz_claiming

from torchkiln.core import StoreError, TorchkilnError
from torchkiln.datasets import read_molecules
from torchkiln.datasets._array_cache import cached_arrays, data_dir
from torchkiln.datasets.cosmic import Larcv3Events, load_cosmic, write_larcv3
from torchkiln.datasets.cosmic._files import find_cosmic
from torchkiln.datasets.cosmic._generate import generate_event
from torchkiln.datasets.fashion_mnist import _files as fashion
from torchkiln.datasets.files._target_table import read_target_table
from torchkiln.datasets.molecules._splits import split_indices
from torchkiln.datasets.qm9._arrays import build_arrays
from torchkiln.datasets.qm9._folder import molecules_in
from torchkiln.datasets.qm9._root import write_qm9_root
from torchkiln.datasets.qm9._source import PARTS
from torchkiln.datasets.water._hydronet_files import read_file
from torchkiln.datasets.water._hydronet_splits import read_split_file

XYZ = "3\nenergy=-76.4\nO 0 0 0\nH 0 0.7 0.6\nH 0 -0.7 0.6\n"
SDF = (
    "water\n  made     3D\n\n  3  2  0  0  0  0            999 V2000\n"
    + "".join(
        f"{x:10.4f}{y:10.4f}{z:10.4f} {symbol}   0  0\n"
        for symbol, x, y, z in [("O", 0, 0, 0), ("H", 0, 0.7, 0.6), ("H", 0, -0.7, 0.6)]
    )
    + "  1  2  1\n  1  3  1\nM  END\n> <energy>\n-76.4\n\n$$$$\n"
)
V3000 = (
    "water\n  made     3D\n\n  0  0  0     0  0            999 V3000\nM  V30 BEGIN CTAB\n"
    "M  V30 COUNTS 3 0 0 0 0\nM  V30 BEGIN ATOM\nM  V30 1 O 0 0 0 0\nM  V30 2 H 0 0.7 0.6 0\n"
    "M  V30 3 H 0 -0.7 0.6 0\nM  V30 END ATOM\nM  V30 END CTAB\nM  END\n$$$$\n"
)
WATER = "3\n0 -76.4\nO 0 0 0\nH 0 0.7 0.6\nH 0 -0.7 0.6\n"


@contextlib.contextmanager
def little_memory(most_bytes=50_000_000):
    """Fail if a reader asks for more than any of these small files can be worth."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most_bytes
    finally:
        tracemalloc.stop()


def refuses(path, read, words=""):
    with little_memory(), pytest.raises(StoreError, match=re.escape(path.name)) as caught:
        read(path)
    assert words in str(caught.value)


# --- arrays -----------------------------------------------------------------------------------


def test_a_kept_file_that_claims_a_terabyte_is_made_anew():
    cached_arrays("numbers", lambda: {"a": np.arange(3)})
    (data_dir() / "numbers.npz").write_bytes(npz_claiming("a"))
    with little_memory(), pytest.warns(UserWarning, match=r"numbers\.npz is damaged .* made anew"):
        assert cached_arrays("numbers", lambda: {"a": np.arange(3)})["a"].sum() == 3


def test_a_kept_file_with_other_arrays_is_made_anew():
    cached_arrays("numbers", lambda: {"b": np.arange(4)})
    with pytest.warns(UserWarning, match=r"numbers\.npz is damaged .*made anew"):
        found = cached_arrays("numbers", lambda: {"a": np.arange(3)}, names=("a",))
    assert found.keys() == {"a"}


@pytest.mark.parametrize("content", [b"", b"\0" * 99, npz_claiming("train", "val", "test")])
def test_damaged_split_arrays_are_named(tmp_path, content):
    path = tmp_path / "split.npz"
    path.write_bytes(content)
    refuses(path, lambda path: split_indices(10, str(path)))


@pytest.mark.parametrize(
    "text", ["", deep_json(), "\0", "[1]", '{"train": [[1], [2, 3]], "val": [], "test": []}']
)
def test_damaged_split_lists_are_named(tmp_path, text):
    path = tmp_path / "split.json"
    path.write_text(text)
    refuses(path, lambda path: split_indices(10, str(path)))


# --- HydroNet ---------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", ["(1000000000000, 9)", "(1000000000000, 0)"])
def test_water_arrays_that_claim_too_much_are_named(tmp_path, shape):
    path = tmp_path / "W3.npz"
    path.write_bytes(npz_claiming("z", "pos", "y", shape=shape))
    refuses(path, lambda path: list(read_file(path)), "claims an array")


def test_water_arrays_of_text_are_named(tmp_path):
    path = tmp_path / "W3.npz"
    np.savez(path, z=np.full((1, 9), "O"), pos=np.zeros((1, 9, 3)), y=np.zeros(1))
    refuses(path, lambda path: list(read_file(path)))


@pytest.mark.parametrize("text", ["3abc\n", "1d1\n", "12e\n", "999999\n-1.0\n", "nan\n"])
def test_odd_counts_of_a_water_file_are_named_with_their_line(tmp_path, text):
    path = tmp_path / "clusters.xyz"
    path.write_text(WATER + text)
    refuses(path, lambda path: list(read_file(path)), "line 6")


def test_the_name_of_a_water_file_allocates_nothing(tmp_path):
    path = tmp_path / "W99999999999.xyz"
    path.write_text(WATER)
    refuses(path, lambda path: list(read_file(path)))


def test_archives_within_archives_end_somewhere(tmp_path):
    content, name = WATER.encode(), "water.xyz"
    for _ in range(20):
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as archive:
            archive.writestr(name, content)
        content, name = packed.getvalue(), "inner.zip"
    path = tmp_path / "clusters.zip"
    path.write_bytes(content)
    refuses(path, lambda path: list(read_file(path)), "within")


def water_archive(form):
    packed = io.BytesIO()
    if form == "zip":
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("W1.xyz", WATER)
    elif form == "tar.gz":
        with tarfile.open(fileobj=packed, mode="w:gz") as archive:
            info = tarfile.TarInfo("W1.xyz")
            info.size = len(WATER)
            archive.addfile(info, io.BytesIO(WATER.encode()))
    elif form == "tar":
        with tarfile.open(fileobj=packed, mode="w") as archive:
            info = tarfile.TarInfo("W1.xyz")
            info.size = len(WATER)
            archive.addfile(info, io.BytesIO(WATER.encode()))
    elif form == "npz":
        z = np.array([[8, 1, 1]], np.int8)
        np.savez(packed, z=z, pos=np.ones((1, 3, 3), np.float16), y=np.ones(1, np.float32))
    else:
        return WATER.encode()
    return packed.getvalue()


@pytest.mark.parametrize("form", ["xyz", "zip", "tar.gz", "tar", "npz"])
def test_any_damage_to_a_water_file_is_our_error(tmp_path, form):
    path = tmp_path / f"water.{form}"
    for content in damaged(water_archive(form), count=60):
        path.write_bytes(content)
        with contextlib.suppress(TorchkilnError):
            list(read_file(path))


@pytest.mark.parametrize(
    "arrays",
    [{"train_idx": np.array([0.5])}, {"train_idx": np.array(["a"])}, {"train_idx": np.eye(2, 2)}],
)
def test_split_files_of_other_numbers_are_named(tmp_path, arrays):
    path = tmp_path / "split.npz"
    np.savez(path, **arrays)
    refuses(path, lambda path: read_split_file(path, None))


@pytest.mark.parametrize("content", [b"", b"PK", npz_claiming("train_idx")])
def test_damaged_split_files_are_named(tmp_path, content):
    path = tmp_path / "split.npz"
    path.write_bytes(content)
    refuses(path, lambda path: read_split_file(path, None))
    outer = tmp_path / "hydronet_splits.zip"
    with zipfile.ZipFile(outer, "w") as archive:
        archive.writestr("split.npz", content)
    path.unlink()
    refuses(outer, lambda path: read_split_file("split.npz", path.parent))


# --- larcv3 -----------------------------------------------------------------------------------

WIRES = "Data/sparse2d_sbndwire_group"


@pytest.fixture
def cosmic(tmp_path):
    path = tmp_path / "events.h5"
    write_larcv3(path, [generate_event(0, number) for number in range(2)])
    return path


def replace_table(path, name, change):
    with h5py.File(path, "a") as file:
        content = file[name][:]
        del file[name]
        change(file, name, content)


def test_an_hdf5_table_that_claims_a_terabyte_is_named(cosmic):
    def claim(file, name, content):
        file.create_dataset(name, shape=(10**12,), dtype=content.dtype, chunks=(1024,))

    replace_table(cosmic, f"{WIRES}/voxels", claim)
    refuses(cosmic, find_cosmic, "claims")
    refuses(cosmic, Larcv3Events, "claims")


def test_events_that_claim_endless_images_are_named(cosmic):
    def claim(file, name, content):
        content["number_of_voxels"][:] = 10**6
        file.create_dataset(name, data=content)

    replace_table(cosmic, f"{WIRES}/image_meta", claim)
    refuses(cosmic, lambda path: load_cosmic(path, downsample=1)[0])


@pytest.mark.parametrize("first", [2**63, 2**64 - 1])
def test_events_that_begin_nowhere_are_named(cosmic, first):
    def claim(file, name, content):
        content["first"] = first
        file.create_dataset(name, data=content)

    replace_table(cosmic, f"{WIRES}/extents", claim)
    refuses(cosmic, lambda path: Larcv3Events(path)[0])


def test_signals_that_are_no_numbers_are_named(cosmic):
    def spoil(file, name, content):
        content["value"][0] = np.nan
        file.create_dataset(name, data=content)

    replace_table(cosmic, f"{WIRES}/voxels", spoil)
    refuses(cosmic, lambda path: Larcv3Events(path)[0])


@pytest.mark.parametrize("table", ["Events/event_id", f"{WIRES}/extents", f"{WIRES}/voxels"])
@pytest.mark.parametrize("other", ["scalar", "group", "plain", "text"])
def test_tables_of_another_kind_are_named(cosmic, table, other):
    def change(file, name, content):
        if other == "group":
            file.create_group(name)
        else:
            values = {"scalar": 3, "plain": np.arange(2), "text": np.array([b"a", b"b"])}
            file.create_dataset(name, data=values[other])

    replace_table(cosmic, table, change)
    if (table, other) in [("Events/event_id", "plain"), ("Events/event_id", "text")]:
        pytest.skip("only the number of events counts here, and it is right")
    refuses(cosmic, lambda path: find_cosmic(path) and Larcv3Events(path)[0])


@pytest.mark.parametrize("content", [b"", b"\x89HDF\r\n\x1a\n", b"text\n" * 500])
def test_files_that_are_no_hdf5_are_named(tmp_path, content):
    path = tmp_path / "events.h5"
    path.write_bytes(content)
    refuses(path, find_cosmic)


# --- Fashion-MNIST ----------------------------------------------------------------------------


def test_an_idx_file_that_unpacks_without_end_is_not_unpacked(tmp_path):
    name = "train-labels-idx1-ubyte"
    path = tmp_path / f"{name}.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(100):
            file.write(bytes(1_000_000))
    refuses(path, lambda path: fashion.read_idx(path.parent, name))


# --- files of structures ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text"), [("a.xyz", XYZ), ("a.sdf", SDF), ("b.sdf", V3000), ("a.xyz.gz", XYZ)]
)
def test_any_damage_to_structures_is_our_error(tmp_path, name, text):
    path = tmp_path / name
    whole = gzip.compress(text.encode()) if name.endswith("gz") else text.encode()
    path.write_bytes(whole)
    assert len(read_molecules(path)) == 1
    for content in damaged(whole):
        path.write_bytes(content)
        with warnings.catch_warnings(), contextlib.suppress(TorchkilnError):
            warnings.simplefilter("ignore")
            read_molecules(path)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.xyz", "1000000000000\n\nO 0 0 0\n", "line 3"),
        ("a.xyz", "9" * 5000 + "\n\nO 0 0 0\n", "line 1"),
        ("a.sdf", SDF.replace("  3  2  0", " -3  2  0"), "line 4"),
        ("a.sdf", SDF.replace("  3  2  0", "  3 -2  0"), "line 4"),
        ("a.sdf", V3000.replace("COUNTS 3", "COUNTS " + "9" * 5000), "line 6"),
        ("a.sdf", SDF.replace("> <energy>", ">" + "<" * 300_000), ""),
    ],
    ids=["atoms", "digits", "minus atoms", "minus bonds", "V3000 digits", "field"],
)
def test_boastful_structures_are_named_with_the_line(tmp_path, name, text, words):
    path = tmp_path / name
    path.write_text(text)
    if not words:
        assert len(read_molecules(path)) == 1
        return
    refuses(path, read_molecules, words)


@pytest.mark.parametrize(
    "content",
    [b"", b"\0" * 50, b"\xff\xfe\n\xff", b"a,b\n1", b'"', b"n,E,E\na,1,2\n", b"n\na\n"],
)
def test_damaged_tables_of_targets_are_named(tmp_path, content):
    path = tmp_path / "molecules.csv"
    path.write_bytes(content)
    refuses(path, read_target_table)


def test_lines_of_a_target_table_are_those_of_the_file(tmp_path):
    path = tmp_path / "molecules.csv"
    path.write_text('name,E\n"two\nlines",1\n\nb,spam\n')
    refuses(path, read_target_table, "line 5")


# --- QM9 --------------------------------------------------------------------------------------


@pytest.fixture
def tables(qm9_tables, tmp_path):
    return shutil.copytree(qm9_tables, tmp_path / "tables")


def test_any_damage_to_the_tables_of_qm9_is_our_error(tables):
    whole = (tables / PARTS[0]).read_bytes()
    lines = whole.splitlines(keepends=True)
    whole = b"".join(lines[:4])
    for part in PARTS[1:]:
        (tables / part).write_bytes(lines[0])
    for content in damaged(whole, count=60):
        (tables / PARTS[0]).write_bytes(content)
        with contextlib.suppress(TorchkilnError):
            build_arrays(tables)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"[-0.0126981359,", b"[nan,"),
        (b"157.7118", b"inf"),
        (b',"C",', b',"[H]",'),
        (b"InChI=1S/CH4", b"\xff\xfe"),
        (b'",5,"', b'",1e30,"'),
        (b'",5,"', b'",nan,"'),
    ],
)
def test_what_cannot_be_right_in_the_tables_is_named(tables, old, new):
    path = tables / PARTS[0]
    content = path.read_bytes()
    assert old in content
    path.write_bytes(content.replace(old, new, 1))
    with pytest.raises(StoreError, match=f"{tables}"):
        build_arrays(tables)


@pytest.mark.parametrize("text", ["", "[]", "3", deep_json(), '{"files": 3}', '{"files": [1]}'])
def test_a_damaged_manifest_names_the_remedy(tables, tmp_path, text):
    root = tmp_path / "root"
    root.mkdir()
    (root / "torchkiln-qm9.json").write_text(text)
    with pytest.raises(StoreError, match=r"torchkiln-qm9\.json is damaged.*--force"):
        write_qm9_root(root, source=tables, limit=2, progress=False)


def processed(root, **changes):
    values = {
        "z": torch.tensor([8, 1, 1]),
        "pos": torch.rand(3, 3),
        "y": torch.zeros(1, 19),
        "name": ["gdb_1"],
    }
    path = root / "processed" / "data_v3.pt"
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(({**values, **changes}, {"z": torch.tensor([0, 3])}), path)
    return path


def test_any_damage_to_the_processed_file_of_pyg_is_our_error(tmp_path):
    path = processed(tmp_path)
    for content in damaged(path.read_bytes(), count=40):
        path.write_bytes(content)
        with warnings.catch_warnings(), contextlib.suppress(TorchkilnError):
            warnings.simplefilter("ignore")
            molecules_in(tmp_path)


def test_a_tensor_larger_than_its_file_is_not_made(tmp_path):
    endless = torch.zeros(1).as_strided((300_000_000, 3), (0, 0))
    path = processed(tmp_path, pos=endless)
    assert path.stat().st_size < 10_000
    refuses(path, lambda path: molecules_in(tmp_path))


@pytest.mark.parametrize("content", [b"", b"\0\xff" * 20, b"1\n2\n"])
def test_published_files_that_are_damaged_are_named(tmp_path, content):
    good = "1\ngdb 1 " + " ".join(["1.0"] * 15) + "\nC 0 0 0 0\n1\nC C\nInChI InChI\n"
    (tmp_path / "dsgdb9nsd_000001.xyz").write_text(good)
    bad = tmp_path / "dsgdb9nsd_000002.xyz"
    bad.write_bytes(content)
    (tmp_path / "uncharacterized.txt").write_text("\n" * 12)
    refuses(bad, lambda path: molecules_in(tmp_path, progress=False))


def test_the_list_of_left_out_molecules_may_be_binary(tmp_path):
    good = "1\ngdb 1 " + " ".join(["1.0"] * 15) + "\nC 0 0 0 0\n1\nC C\nInChI InChI\n"
    (tmp_path / "dsgdb9nsd_000001.xyz").write_text(good)
    bad = tmp_path / "uncharacterized.txt"
    bad.write_bytes(b"\xff\n" * 20)
    refuses(bad, lambda path: molecules_in(tmp_path, progress=False), "line 10")


def test_arrays_of_claims_are_what_these_tests_say():
    with pytest.raises((ValueError, MemoryError)):
        np.lib.format.read_array(io.BytesIO(claiming("(1000000000000,)")))
