"""Files of arrays: read whole, or refused by name without believing what they claim."""

from __future__ import annotations

import io
import struct
import tracemalloc
import zipfile

import numpy as np
import pytest

from torchkiln.core import StoreError, read_npy, read_npz


def header_of(shape: str, dtype: str = "<f8") -> bytes:
    """Return the start of a .npy file that claims an array of this shape."""
    text = f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def write_npz(path, members, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_come_back(tmp_path, save):
    arrays = {
        "flat": np.arange(100_000),
        "none": np.empty((0, 3), np.float32),
        "scalar": np.float64(3),
        "zeros": np.zeros(1_000_000, np.uint8),
        "text": np.array(["a", "bc"]),
        "fortran": np.asfortranarray(np.ones((3, 4))),
        "structured": np.array([(1, 2.0)], [("n", "i4"), ("é", "f8")]),
    }
    save(tmp_path / "a.npz", **arrays)
    found = read_npz(tmp_path / "a.npz")
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype
    assert read_npz(tmp_path / "a.npz", names=["flat", "more"]).keys() == {"flat"}


@pytest.mark.parametrize(
    "shape",
    ["(1000000000000,)", "(1000000, 1000000)", "(1000000000000, 0)", "(0, 10**30)", "(-5,)"],
)
@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_claimed_size_is_not_allocated(tmp_path, shape, compression):
    shape = shape.replace("10**30", "1" + "0" * 30)
    path = write_npz(tmp_path / "a.npz", {"z.npy": header_of(shape) + b"\0" * 100}, compression)
    tracemalloc.start()
    with pytest.raises(StoreError, match=r"a\.npz.*'z'.*(claims an array|no array)"):
        read_npz(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10_000_000


def test_sizes_that_the_archive_claims_are_not_believed(tmp_path):
    path = write_npz(tmp_path / "a.npz", {"z.npy": header_of("(1000000000,)") + b"\0" * 100})
    content = bytearray(path.read_bytes())
    directory = content.find(b"PK\x01\x02")
    content[directory + 20 : directory + 28] = struct.pack("<II", 2**32 - 2, 2**32 - 2)
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"a\.npz"):
        read_npz(path)


def test_python_objects_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", z=np.array([{}], object), allow_pickle=True)
    with pytest.raises(StoreError, match="Python objects"):
        read_npz(tmp_path / "a.npz")


@pytest.mark.parametrize("content", [b"", b"\0" * 1000, b"PK\x03\x04", b"text\n" * 50])
def test_other_files_are_named(tmp_path, content):
    for name, read in (("a.npz", read_npz), ("a.npy", read_npy)):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(StoreError, match=name):
            read(tmp_path / name)


@pytest.mark.parametrize("nonsense", ["(" * 3000, "-" * 9000 + "1", "[" * 90, "(1,", "{}"])
def test_headers_that_no_parser_likes_are_named(tmp_path, nonsense):
    (tmp_path / "a.npy").write_bytes(header_of(nonsense))
    with pytest.raises(StoreError, match=r"a\.npy"):
        read_npy(tmp_path / "a.npy")


def test_a_header_that_claims_gigabytes_is_not_read(tmp_path):
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**32 - 1) + b"{}")
    with pytest.raises(StoreError, match=r"a\.npy"):
        read_npy(tmp_path / "a.npy")


def test_an_npy_file_may_be_large_only_if_it_is(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(5))
    np.testing.assert_array_equal(read_npy(tmp_path / "a.npy"), np.arange(5))
    (tmp_path / "a.npy").write_bytes(header_of("(1000000000000,)"))
    with pytest.raises(StoreError, match=r"a\.npy.*claims an array"):
        read_npy(tmp_path / "a.npy")


def test_a_missing_file_stays_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_npz(tmp_path / "none.npz")


def test_damage_anywhere_is_our_error_or_the_same_arrays():
    """Flip and cut each of the bytes: nothing but our error, and never another number."""
    arrays = {"z": np.arange(6, dtype=np.uint8), "pos": np.linspace(0, 1, 6)}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    whole = buffer.getvalue()
    damaged = [whole[:length] for length in range(len(whole))]
    for place in range(len(whole)):
        for flip in (0x01, 0x80, 0xFF):
            content = bytearray(whole)
            content[place] ^= flip
            damaged.append(bytes(content))
    for content in damaged:
        try:
            found = read_npz(io.BytesIO(content), "a.npz")
        except StoreError:
            continue
        for name in arrays.keys() & found.keys():
            np.testing.assert_array_equal(found[name], arrays[name])


def test_more_arrays_than_two_bytes_can_count_are_read(tmp_path):
    content = io.BytesIO()
    np.save(content, np.arange(3))
    path = tmp_path / "many.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(2**16 + 1):
            archive.writestr(f"a{number}.npy", content.getvalue())
    found = read_npz(path, names=["a0", f"a{2**16}"])
    assert {name: array.tolist() for name, array in found.items()} == {
        "a0": [0, 1, 2],
        f"a{2**16}": [0, 1, 2],
    }
