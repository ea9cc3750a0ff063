"""A program that cannot be: the reader sees the lines of their own code, and nothing else."""

from __future__ import annotations

import re
import runpy
import traceback

import pytest
import torch

from torchkiln import DynamicShapeError, ShapeChanged
from torchkiln.core import CaptureError, NoLossError, OptimizerError, TorchkilnError

START = """
import torch
from torch import nn
from torchkiln import Options, inference_model, training_model

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)
    def forward(self, x):
        return self.step(x)
    def step(self, x):
        {line}

options = Options(backend="capture", show_progress=False)
{calls}
"""
INFER = "inference_model(Net(), options)(torch.ones(2, 3))"
TRAIN = "training_model(Net(), options)(torch.ones(2, 3))"
TWICE = """program = inference_model(Net(), options)
program(torch.ones(2, 3))
program(torch.ones(5, 3))"""
REPLACED = "program = training_model(Net(), options)\nprogram.set_optimizer(3)"
MISTAKES = {
    "a mask": (DynamicShapeError, "return x[x > 0]", INFER, "x[x > 0]"),
    "a branch": (DynamicShapeError, "return x if x.sum() > 0 else -x", INFER, "if x.sum() > 0"),
    "a number": (DynamicShapeError, "return x * x.max().item()", INFER, "x.max().item()"),
    "a seed": (CaptureError, "torch.manual_seed(0); return x", INFER, "torch.manual_seed(0)"),
    "no loss": (NoLossError, "return self.layer(x)", TRAIN, "training_model("),
    "another shape": (ShapeChanged, "return self.layer(x)", TWICE, "torch.ones(5, 3)"),
    "no optimiser": (OptimizerError, "return x", REPLACED, "program.set_optimizer(3)"),
}
# Python prints two or three lines a frame; the message has five.
MOST_LINES = 18


def run(folder, line, calls):
    path = folder / "users_program.py"
    path.write_text(START.format(line=line, calls=calls))
    with pytest.raises(TorchkilnError) as caught:
        runpy.run_path(str(path), run_name="__main__")
    error, trace = caught.value, caught.value.__traceback__
    # What called the program here is this test, and runpy.
    while trace.tb_frame.f_code.co_filename != str(path):
        trace = trace.tb_next
    return error, trace


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_ends_a_short_traceback(tmp_path, mistake):
    kind, line, calls, shown = MISTAKES[mistake]
    error, trace = run(tmp_path, line, calls)
    text = "".join(traceback.format_exception(type(error), error, trace))
    assert type(error) is kind
    assert shown in text
    assert len(text.splitlines()) <= MOST_LINES, text
    assert torch.__path__[0] not in text
    # One frame of ours stays: Python adds the one that raises.
    assert text.count("/torchkiln/") <= 1


def test_all_frames_can_be_shown(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHKILN_FULL_TRACEBACK", "1")
    _, line, calls, shown = MISTAKES["a mask"]
    error, trace = run(tmp_path, line, calls)
    text = "".join(traceback.format_exception(type(error), error, trace))
    assert len(text.splitlines()) > 100
    assert torch.__path__[0] in text
    assert shown in text


def test_notebooks_show_the_users_lines_only(tmp_path):
    pytest.importorskip("IPython", reason="IPython prints the tracebacks of notebooks")
    from IPython.core.ultratb import VerboseTB

    _, line, calls, _ = MISTAKES["a mask"]
    error, trace = run(tmp_path, line, calls)
    text = re.sub(r"\x1b\[[\d;]*m", "", VerboseTB().text(type(error), error, trace))
    assert "return x[x > 0]" in text
    assert len(text.splitlines()) < 60, text
    assert torch.__path__[0] not in text
