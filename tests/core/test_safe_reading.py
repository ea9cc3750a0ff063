"""Damaged files are one kind of error, and none takes more memory than it has bytes for."""

from __future__ import annotations

import io
import random
import tracemalloc
import zipfile

import numpy as np
import pytest

from torchkiln.core import Unreadable, read_json, read_npy, read_npz

ARRAYS = {
    "counts": np.arange(50),
    "words": np.array(["a", "bc"]),
    "grid": np.asfortranarray(np.arange(12.0).reshape(3, 4)),
    "nothing": np.zeros((0, 3), dtype=np.int8),
    "one": np.array(7.5),
}


def assert_same_arrays(found, expected):
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert found[name].dtype == array.dtype
        assert np.array_equal(found[name], array)


@pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
def test_arrays_come_back(tmp_path, write):
    write(tmp_path / "a.npz", **ARRAYS)
    assert_same_arrays(read_npz(tmp_path / "a.npz"), ARRAYS)


@pytest.mark.parametrize("name", ARRAYS)
def test_a_single_array_comes_back(tmp_path, name):
    np.save(tmp_path / "a.npy", ARRAYS[name])
    assert_same_arrays({name: read_npy(tmp_path / "a.npy")}, {name: ARRAYS[name]})


def test_large_arrays_come_back(tmp_path):
    array = np.random.default_rng(0).integers(256, size=2**24 + 77, dtype=np.uint8)
    np.savez_compressed(tmp_path / "a.npz", a=array, b=np.zeros(10**7))
    found = read_npz(tmp_path / "a.npz")
    assert np.array_equal(found["a"], array)
    assert not found["b"].any()


def read_or_refuse(read, content):
    try:
        return read(io.BytesIO(content))
    except Unreadable:
        return None


@pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
def test_damage_is_refused_or_has_no_effect(write):
    file = io.BytesIO()
    write(file, **ARRAYS)
    content = file.getvalue()
    chance = random.Random(0)
    for _ in range(2000):
        damaged = bytearray(content)
        damaged[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        found = read_or_refuse(read_npz, bytes(damaged))
        if found is not None:
            assert_same_arrays(found, ARRAYS)
    for _ in range(200):
        assert read_or_refuse(read_npz, content[: chance.randrange(len(content))]) is None


def npy_that_claims(shape, dtype="<i8"):
    file = io.BytesIO()
    header = {"descr": dtype, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue() + bytes(80)


@pytest.mark.parametrize("shape", [(10**12,), (2**40, 2**40), (-1,), (11,)])
def test_an_array_that_claims_more_than_there_is_takes_no_memory(shape):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", npy_that_claims(shape))
    tracemalloc.start()
    for read, content in (
        (read_npy, npy_that_claims(shape)),
        (read_npz, packed.getvalue()),
    ):
        with pytest.raises(Unreadable):
            read(io.BytesIO(content))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10**7


def test_a_part_that_claims_more_than_there_is_takes_no_memory():
    packed = io.BytesIO()
    content = npy_that_claims((10**9,))
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", content)
    claim = (8 * 10**9 % 2**32).to_bytes(4, "little")
    bomb = packed.getvalue().replace(len(content).to_bytes(4, "little"), claim)
    with pytest.raises(Unreadable):
        read_npz(io.BytesIO(bomb))


@pytest.mark.parametrize("dtype", ["|O", "nonsense", "[('a'", "(" * 5000])
def test_types_that_are_no_numbers_are_refused(dtype):
    with pytest.raises(Unreadable):
        read_npy(io.BytesIO(npy_that_claims((1,), dtype)))


def test_other_parts_of_an_archive_are_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("readme.txt", "hello")
    with pytest.raises(Unreadable, match="no array"):
        read_npz(tmp_path / "a.npz")


@pytest.mark.parametrize("content", ["[" * 10**5, "{", "", "\x00"])
def test_json_that_is_none_is_refused(tmp_path, content):
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(Unreadable):
        read_json(tmp_path / "a.json")


@pytest.mark.parametrize("read", [read_json, read_npy, read_npz])
def test_a_file_that_is_not_there_stays_that(tmp_path, read):
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "nowhere")
