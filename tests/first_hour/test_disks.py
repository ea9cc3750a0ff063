"""Disks that are full or cannot be written: one line before work is lost, or on without a cache."""

from __future__ import annotations

import shutil
import tempfile
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from torchkiln import Options
from torchkiln.apps import cosmic, schnet
from torchkiln.core import ExecutableError, OptionsError, StoreError, _places, _room
from torchkiln.datasets._array_cache import cached_arrays
from torchkiln.graphs import GraphStore
from torchkiln.runtime.cache._cache import ExecutableCache
from torchkiln.runtime.compile._inductor import explain_failure
from torchkiln.runtime.compile._inductor_workspace import private_workspace
from torchkiln.runtime.compile._tracing import _keep
from torchkiln.runtime.execute import _executable
from torchkiln.training import Trainer

KEY = "0" * 64


@pytest.fixture
def file(tmp_path):
    """A file where a folder is expected: nobody can write below it, not even root."""
    path = tmp_path / "file"
    path.touch()
    return path


@pytest.fixture
def full_disk(monkeypatch):
    """Every disk has a megabyte left."""
    usage = shutil.disk_usage("/")._replace(free=2**20)
    monkeypatch.setattr(_room.shutil, "disk_usage", lambda _path: usage)


def only_line(capsys):
    """Return what a command complained of: one line, beside where the flags are explained."""
    lines = [line for line in capsys.readouterr().err.splitlines() if "--help" not in line]
    assert len(lines) == 1, lines
    return lines[0]


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        ("--output_dir {}/runs", "the report"),
        ("--checkpoint true --model_name a --checkpoint_dir {}/models", "the checkpoint"),
        ("--profile_dir {}/profile", "the profile"),
    ],
)
def test_a_benchmark_whose_results_cannot_be_written_does_not_begin(
    file, tmp_path, monkeypatch, capsys, flags, what
):
    monkeypatch.chdir(tmp_path)
    assert schnet.main(flags.format(file).split()) != 0
    line = only_line(capsys)
    assert f"{what} cannot be written to {file}" in line
    assert f"{file} is not a folder; choose another --" in line
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_benchmark_on_a_full_disk_does_not_begin(full_disk, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert schnet.main([]) != 0
    assert "only 1 MB are free, and it may need 8 MB; free some space" in only_line(capsys)


def test_cosmictagger_does_not_begin_either(file, capsys):
    assert cosmic.main([f"run.output_dir={file}"]) != 0
    line = only_line(capsys)
    assert f"the results cannot be written to {file}" in line
    assert "choose another run.output_dir" in line


def test_a_trainer_does_not_begin_either(file):
    module = nn.Linear(2, 2)
    batches = torch.utils.data.DataLoader(torch.ones(2, 2))
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    trainer = Trainer(module, batches, optimizer=optimizer, num_epochs=1, directory=file / "run")
    with pytest.raises(OptionsError, match=r"the run cannot be written to .*another directory"):
        trainer.fit()


def test_a_store_that_cannot_be_written_is_one_line(file):
    with pytest.raises(StoreError, match=r"cannot write below .*file.*; choose another dir"):
        GraphStore.build([], file / "store", progress=False)


def test_a_data_folder_that_cannot_be_written_costs_a_warning(file, monkeypatch):
    monkeypatch.setenv("TORCHKILN_DATA_DIR", str(file))
    with pytest.warns(UserWarning, match="cannot be written .*set TORCHKILN_DATA_DIR") as caught:
        arrays = cached_arrays("some", lambda: {"a": np.ones(3)})
    assert len(caught) == 1
    assert arrays["a"].sum() == 3


def test_an_executable_cache_that_cannot_be_written_costs_a_warning(file, tmp_path):
    package = tmp_path / "program.pt2"
    package.write_bytes(b"code")
    cache = ExecutableCache(file / "cache", 2**30)
    told = "the next start compiles again; free some"
    with cache.holding(KEY) as found, pytest.warns(UserWarning, match=told) as caught:
        _keep(cache, KEY, package, "tiny")
    assert found is None
    assert len(caught) == 1


def test_a_user_cache_without_room_costs_one_warning(full_disk, tmp_path, monkeypatch):
    """One in all: for what compilers keep, and for executables beside it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(_places, "_instead", [])
    package = tmp_path / "program.pt2"
    package.write_bytes(b"code")
    (tmp_path / "cache" / "torchkiln").mkdir(parents=True)
    (tmp_path / "cache" / "torchkiln" / "executables").touch()  # refuses, as a full disk does
    told = r"only 1 MB are free, of 384 MB that it takes.*lost when this process ends"
    cache = ExecutableCache(tmp_path / "cache" / "torchkiln" / "executables", 2**30)
    with pytest.warns(UserWarning, match=told) as caught, private_workspace():
        _keep(cache, KEY, package, "tiny")
    assert len(caught) == 1


def test_a_compiler_without_room_is_one_line(full_disk):
    said = "command, 2,000 letters long\ncannot write PCH file: No space left on device"
    text = explain_failure(RuntimeError(said))
    assert text.startswith("there is no room for what is compiled (1 MB are free in ")
    assert text.endswith("set TORCHINDUCTOR_CACHE_DIR and TMPDIR to folders with room")
    assert "\n" not in text


def test_an_executable_that_cannot_be_unpacked_is_not_called_damaged(
    full_disk, tmp_path, monkeypatch
):
    def refuse(path, name, index):
        raise RuntimeError("Failed to extract zip file a to b: file close failed")

    monkeypatch.setattr(_executable, "load_package", refuse)
    package = tmp_path / "program.pt2"
    package.write_bytes(bytes(2**19))
    with pytest.raises(ExecutableError, match=r"no room to unpack .*set TMPDIR to another place"):
        _executable.NativeExecutable(package, torch.device("cpu"), ["step"])
    assert package.exists()
    assert Path(tempfile.gettempdir()).is_dir()


def test_enough_room_costs_nothing(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _room.check_room(tmp_path, "the report", "", least_bytes=0)
    assert Options().cache_dir is None
