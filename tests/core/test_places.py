"""Where things are kept, also without a home that can be written."""

from __future__ import annotations

import pathlib
import stat
import warnings

import pytest

from torchkiln.core import _places, user_cache_dir, writable_cache_dir


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(_places, "_instead", [])
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)


def no_home():
    raise RuntimeError("Could not determine home directory.")


def test_without_a_home_the_cache_goes_with_the_process_which_is_said_once(monkeypatch):
    monkeypatch.setattr(pathlib.Path, "home", no_home)
    with pytest.warns(UserWarning, match="no home directory.*set XDG_CACHE_HOME"):
        folder = user_cache_dir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert user_cache_dir() == folder
        assert writable_cache_dir("native") == folder / "native"


def test_a_home_that_cannot_be_written_is_replaced_for_the_process(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match=r"file/torchkiln/inductor cannot be used.*TORCHINDUCTOR"):
        folder = writable_cache_dir("inductor")
    assert not folder.is_relative_to(tmp_path / "file")


def test_a_home_that_can_be_written_is_used(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert writable_cache_dir("native") == tmp_path / "torchkiln" / "native"
    assert (tmp_path / "torchkiln" / "native").is_dir()
