"""Where native helpers come from, and what happens where they cannot."""

import pytest

from torchkiln.ops import _native


@pytest.fixture(autouse=True)
def fresh(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHKILN_NATIVE_DIR", str(tmp_path / "native"))
    _native.load_native.cache_clear()
    yield
    _native.load_native.cache_clear()


@pytest.mark.skipif(_native.load_native("_mt19937") is None, reason="no C compiler")
def test_a_compiler_may_be_a_command_with_arguments(monkeypatch):
    monkeypatch.setenv("CC", "env LANG=C gcc")
    assert _native.load_native("_mt19937") is not None


@pytest.mark.skipif(_native.load_native("_mt19937") is None, reason="no C compiler")
def test_the_folder_may_be_the_one_we_are_in(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCHKILN_NATIVE_DIR", ".")
    assert _native.load_native("_mt19937") is not None


def test_a_folder_that_cannot_be_written_is_told(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("CC", "gcc")
    monkeypatch.setenv("TORCHKILN_NATIVE_DIR", str(tmp_path / "file" / "native"))
    with pytest.warns(UserWarning, match="set TORCHKILN_NATIVE_DIR to a folder that can be"):
        assert _native.load_native("_mt19937") is None
