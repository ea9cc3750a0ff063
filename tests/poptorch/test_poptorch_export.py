import json
import os
import pickle
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest
import torch
from torch import nn

import poptorch
from poptorch import _export
from torchkiln.core import check_trusted

# The one test that needs native code, in a module that another process can import.
MODULE = """
import torch
from torch import nn


class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 1)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x, y):
        return nn.functional.mse_loss(self.layer(self.dropout(x)), y)
"""
LOADER = """
import sys
import torch
import poptorch

model = poptorch.load(sys.argv[1], lambda options: options.modelName("loaded"))
assert model.options.model_name == "loaded"
x, y = torch.load(sys.argv[2])
losses = [model(x, y) for _ in range(3)]
assert model._program.num_compiles == 0 and model._program.num_captures == 0
torch.save((losses, model.state_dict()), sys.argv[3])
"""


@pytest.mark.inductor
def test_a_saved_model_continues_in_another_process(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHKILN_BACKEND", "inductor")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "noisy_module.py").write_text(MODULE)
    from noisy_module import Noisy

    torch.manual_seed(0)
    x, y = torch.randn(8, 3), torch.randn(8, 1)
    torch.save((x, y), tmp_path / "data.pt")
    net = Noisy()
    model = poptorch.trainingModel(net, optimizer=poptorch.optim.Adam(net.parameters(), lr=0.1))
    model(x, y)
    target = tmp_path / "deep" / "net.poptorch"
    model.save(target)
    expected = [model(x, y) for _ in range(3)]

    script = textwrap.dedent(LOADER)
    subprocess.run(
        [sys.executable, "-c", script, target, tmp_path / "data.pt", tmp_path / "out.pt"],
        check=True,
        cwd=tmp_path,
    )
    losses, state = torch.load(tmp_path / "out.pt")
    torch.testing.assert_close(torch.stack(losses), torch.stack(expected), rtol=0, atol=0)
    torch.testing.assert_close(state, dict(net.state_dict()), rtol=0, atol=0)

    bare = tmp_path / "bare.poptorch"
    model.save(bare, export_model=False)
    with pytest.raises(AssertionError, match="holds no model"):
        poptorch.load(bare)
    fresh = Noisy()
    executor = poptorch.trainingModel(
        fresh, optimizer=poptorch.optim.Adam(fresh.parameters(), lr=0.1)
    )
    weight = fresh.layer.weight.detach().clone()
    executor.loadExecutable(bare)
    assert executor.isCompiled()
    assert torch.equal(fresh.layer.weight, weight)
    executor(x, y)
    assert executor._program.num_captures == 0
    model.destroy()
    executor.destroy()


def test_backends_without_native_code_cannot_be_saved(tmp_path):
    model = poptorch.inferenceModel(nn.Linear(2, 1))
    with pytest.raises(poptorch.Error, match="inductor"):
        model.compileAndExport(tmp_path / "x.poptorch", torch.ones(1, 2))
    assert list(tmp_path.iterdir()) == []


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "x.poptorch"
    path.write_text("not a model")
    with pytest.raises(poptorch.Error, match="is not a file of PoplarExecutor"):
        poptorch.load(path)
    with pytest.raises(poptorch.Error, match="is not a file of PoplarExecutor"):
        poptorch.inferenceModel(nn.Linear(1, 1)).loadExecutable(path)
    torch.save({}, path)
    with pytest.raises(poptorch.Error, match=r"no item named .poptorch\.json"):
        poptorch.load(path)


class Unsavable:
    def __reduce__(self):
        raise OSError("the file is open")


def test_a_part_that_cannot_be_saved_is_named_and_the_old_file_stays(tmp_path, monkeypatch):
    net = nn.Linear(2, 1)
    net.extra = {"source": Unsavable()}
    model = poptorch.inferenceModel(net)
    model(torch.ones(1, 2))
    # What native code is saved does not matter here.
    monkeypatch.setattr(type(model._program), "export", lambda self, path: path.write_bytes(b""))
    target = tmp_path / "net.poptorch"
    target.write_text("before")
    named = r"model.*\.extra\['source'\], of type .*Unsavable \(OSError: the file is open\)"
    with pytest.raises(poptorch.Error, match=named):
        model.save(target)
    assert target.read_text() == "before"
    assert list(tmp_path.iterdir()) == [target]


GOOD = {"version": poptorch.__version__, "has_model": True, "has_rng_state": False}


@pytest.mark.parametrize(
    ("description", "model"),
    [
        (b"", b""),
        (b"[" * 100_000, b""),
        (b"[1]", b""),
        (b"\xff\xfe", b""),
        (b'{"version": 1}', b""),
        (json.dumps(GOOD).encode(), b""),
        (json.dumps(GOOD).encode(), b"no model"),
        (json.dumps(GOOD).encode(), pickle.dumps({})),
        (json.dumps(GOOD).encode(), None),
    ],
)
def test_damaged_files_are_named(tmp_path, description, model):
    path = tmp_path / "x.poptorch"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("poptorch.json", description)
        if model is not None:
            archive.writestr("model.pt", model)
    with pytest.raises(poptorch.Error, match=r"x\.poptorch"):
        poptorch.load(path)


@pytest.mark.parametrize("program", [None, b"", b"no program"])
def test_files_without_a_program_are_named(tmp_path, program):
    path = tmp_path / "x.poptorch"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("poptorch.json", json.dumps({**GOOD, "has_model": False}))
        if program is not None:
            archive.writestr("program.torchkiln", program)
    with pytest.raises(poptorch.Error, match="program"):
        poptorch.inferenceModel(nn.Linear(1, 1)).loadExecutable(path)


def test_the_program_in_a_file_is_trusted_whatever_the_umask(tmp_path):
    with zipfile.ZipFile(tmp_path / "model.poptorch", "w") as archive:
        archive.writestr(_export._PROGRAM, "code")
    (tmp_path / "private").mkdir(mode=0o700)
    before = os.umask(0)
    try:
        with zipfile.ZipFile(tmp_path / "model.poptorch") as archive:
            path = _export._extract_program(archive, str(tmp_path / "private"))
    finally:
        os.umask(before)
    check_trusted(Path(path))
