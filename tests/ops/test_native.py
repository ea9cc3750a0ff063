"""Where native helpers come from, and what happens where they cannot."""

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from torchkiln.core import TrustError, _places
from torchkiln.ops import _native, segment_sum

SUM_WITHOUT_A_COMPILER = """
import torch
from torchkiln.ops import segment_sum
print(segment_sum(torch.ones(4, 2), torch.tensor([0, 0, 2, 2]), 3).tolist())
print(torch._C._dispatch_has_kernel_for_dispatch_key("torchkiln::segment_sum", "CPU"))
"""


def test_torch_calls_kernels_itself_once_they_are_built():
    """No Python in between: what is registered for the CPU is the C++ function."""
    if _native.load_native("_segment_sum") is None:
        pytest.skip("no C++ compiler")
    segment_sum(torch.ones(4, 2), torch.tensor([0, 0, 2, 2]), 3)
    name = "torchkiln::segment_sum"
    assert torch._C._dispatch_has_kernel_for_dispatch_key(name, "CPU")
    assert not torch._C._dispatch_has_kernel_for_dispatch_key(name, "CUDA")


def test_without_a_compiler_plain_torch_computes(tmp_path):
    environment = {**os.environ, "CXX": "false", "TORCHKILN_NATIVE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", SUM_WITHOUT_A_COMPILER]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=120, check=True
    )
    assert done.stdout.split("\n")[:2] == ["[[2.0, 2.0], [0.0, 0.0], [2.0, 2.0]]", "False"]


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHKILN_NATIVE_DIR", str(tmp_path / "native"))
    _native.load_native.cache_clear()
    yield
    _native.load_native.cache_clear()


@pytest.mark.skipif(_native.load_native("_mt19937") is None, reason="no C compiler")
def test_a_compiler_may_be_a_command_with_arguments(monkeypatch, fresh):
    monkeypatch.setenv("CC", "env LANG=C gcc")
    assert _native.load_native("_mt19937") is not None


@pytest.mark.skipif(_native.load_native("_mt19937") is None, reason="no C compiler")
def test_the_folder_may_be_the_one_we_are_in(monkeypatch, tmp_path, fresh):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCHKILN_NATIVE_DIR", ".")
    assert _native.load_native("_mt19937") is not None


def test_a_folder_that_cannot_be_written_is_told(monkeypatch, tmp_path, fresh):
    (tmp_path / "file").touch()
    monkeypatch.setenv("CC", "gcc")
    monkeypatch.setenv("TORCHKILN_NATIVE_DIR", str(tmp_path / "file" / "native"))
    with pytest.warns(UserWarning, match="set TORCHKILN_NATIVE_DIR to a folder that can be"):
        assert _native.load_native("_mt19937") is None


def library_in(folder):
    (path,) = folder.glob("*.so")
    return path


def damage_truncated(path):
    path.write_bytes(path.read_bytes()[:3000])


def damage_flipped(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def damage_emptied(path):
    path.write_bytes(b"")


@pytest.mark.skipif(_native.load_native("_mt19937") is None, reason="no C compiler")
@pytest.mark.parametrize(
    "damage",
    [
        damage_truncated,
        *(pytest.param(d, marks=pytest.mark.slow) for d in (damage_flipped, damage_emptied)),
    ],
)
def test_a_damaged_library_is_built_again_and_said_once(tmp_path, fresh, recwarn, damage):
    path = tmp_path / "native"
    code = "from torchkiln.ops import _native; assert _native.load_native('_mt19937') is not None"
    command = [sys.executable, "-c", code]
    subprocess.run(command, check=True)
    damage(library_in(path))
    again = subprocess.run(command, check=True, capture_output=True, text=True)
    assert again.stderr.count("was damaged; it has been built again") == 1
    third = subprocess.run(command, check=True, capture_output=True, text=True)
    assert "damaged" not in third.stderr


@pytest.mark.skipif(_native.load_native("_mt19937") is None, reason="no C compiler")
@pytest.mark.parametrize("part", ["library", "folder"])
def test_a_library_that_others_may_write_is_not_loaded(tmp_path, monkeypatch, fresh, part):
    assert _native.load_native("_mt19937") is not None
    folder = tmp_path / "native"
    (library_in(folder) if part == "library" else folder).chmod(0o777)
    _native.load_native.cache_clear()
    with pytest.raises(TrustError, match=r"can be written by everybody.*TORCHKILN_TRUSTED_DIRS"):
        _native.load_native("_mt19937")
    monkeypatch.setenv("TORCHKILN_TRUSTED_DIRS", str(folder))
    assert _native.load_native("_mt19937") is not None


@pytest.mark.parametrize("compiler", ["missing", "failing"])
def test_damage_that_cannot_be_mended_is_said_once(tmp_path, monkeypatch, fresh, compiler):
    if compiler == "missing":
        monkeypatch.delenv("CC", raising=False)
        monkeypatch.setattr(_native.shutil, "which", lambda _name: None)
    else:
        monkeypatch.setenv("CC", "false")
    source = Path(_native.__file__).with_name("_mt19937.c")
    digest = _native._digest(source, _native._LANGUAGES[".c"][2])
    library = tmp_path / "native" / f"_mt19937-{digest}.so"
    library.parent.mkdir()
    library.write_bytes(b"half a lib")
    told = f"{library} is damaged and cannot be built again.*a compiler or delete the file"
    with pytest.warns(UserWarning, match=told) as warnings:
        assert _native.load_native("_mt19937") is None
    assert len(warnings) == 1


@pytest.mark.skipif(_native.load_native("_mt19937") is None, reason="no C compiler")
@pytest.mark.parametrize("umask", [0o000, 0o002])
def test_a_folder_that_we_make_is_trusted_whatever_the_umask(monkeypatch, tmp_path, umask):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    if os.geteuid() == 0:
        os.chown(tmp_path, -1, 12345)  # a group that is not private, which all below inherit
    tmp_path.chmod(0o2755)
    before = os.umask(umask)
    try:
        assert _native.load_native.__wrapped__("_mt19937") is not None
        assert _native.load_native.__wrapped__("_mt19937") is not None
    finally:
        os.umask(before)


@pytest.mark.skipif(_native.load_native("_mt19937") is None, reason="no C compiler")
def test_without_a_home_helpers_are_built_for_the_process(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setattr(_places, "_instead", [])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="cannot be used.*set XDG_CACHE_HOME"):
        assert _native.load_native.__wrapped__("_mt19937") is not None


@pytest.mark.skipif(_native.load_native("_mt19937") is None, reason="no C compiler")
def test_helpers_are_built_where_there_are_no_locks(monkeypatch, fresh):
    def no_locks(_descriptor, _kind):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    assert _native.load_native("_mt19937") is not None
