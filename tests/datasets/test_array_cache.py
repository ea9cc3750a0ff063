import os
from pathlib import Path

import numpy as np
import pytest

from torchkiln.core import check_trusted
from torchkiln.datasets._array_cache import cached_arrays, data_dir


def test_the_data_directory_is_named_by_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHKILN_DATA_DIR", str(tmp_path))
    assert data_dir() == tmp_path
    monkeypatch.delenv("TORCHKILN_DATA_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert data_dir() == tmp_path / "torchkiln"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert data_dir() == Path.home() / ".cache" / "torchkiln"


def never():
    raise AssertionError("must not be built again")


def test_arrays_are_built_once_for_each_name():
    built = cached_arrays("numbers", lambda: {"a": np.arange(3), "b": np.ones((2, 2))})
    kept = cached_arrays("numbers", never)
    assert {name: array.tolist() for name, array in kept.items()} == {
        name: array.tolist() for name, array in built.items()
    }
    with pytest.raises(AssertionError, match="again"):
        cached_arrays("others", never)


@pytest.mark.parametrize("damage", ["cut", "changed", "emptied"])
def test_a_damaged_file_is_replaced_with_a_warning(damage):
    cached_arrays("numbers", lambda: {"a": np.arange(1000)})
    path = data_dir() / "numbers.npz"
    content = path.read_bytes()
    middle = len(content) // 2
    damaged = {
        "cut": content[:middle],
        "changed": content[:middle] + b"spam" + content[middle + 4 :],
        "emptied": b"",
    }
    path.write_bytes(damaged[damage])
    with pytest.warns(UserWarning, match=r"numbers.npz is damaged .* made anew"):
        again = cached_arrays("numbers", lambda: {"a": np.arange(1000)})
    assert again["a"].sum() == 999 * 500
    assert cached_arrays("numbers", never)["a"].sum() == 999 * 500


def test_where_nothing_can_be_written_arrays_are_built_each_time(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("TORCHKILN_DATA_DIR", str(tmp_path / "file"))
    for _ in range(2):
        with pytest.warns(UserWarning, match=r"numbers.npz cannot be written .*TORCHKILN_DATA_DIR"):
            assert cached_arrays("numbers", lambda: {"a": np.arange(3)})["a"].sum() == 3


def test_what_fails_while_building_is_not_hidden():
    with pytest.raises(FileNotFoundError):
        cached_arrays("numbers", lambda: {"a": np.load("no such file.npy")})


def test_native_code_can_be_kept_beside_the_arrays_whatever_the_umask(monkeypatch, tmp_path):
    tmp_path.chmod(0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("TORCHKILN_DATA_DIR", raising=False)
    before = os.umask(0)
    try:
        cached_arrays("name", lambda: {"a": np.ones(2)})
    finally:
        os.umask(before)
    check_trusted(data_dir())
