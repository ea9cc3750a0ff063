"""The README's example with molecules."""

from __future__ import annotations

import re
from pathlib import Path

import torch

import torchkiln.datasets

README = Path(__file__).parents[2] / "README.md"


def test_the_example_with_molecules_trains(monkeypatch, molecules, capsys):
    _, code = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    monkeypatch.setenv("TORCHKILN_BACKEND", "capture")
    graphs = [graph.clone() for graph in molecules]
    for graph in graphs:
        graph.y = graph.y.repeat(1, 19)
    monkeypatch.setattr(torchkiln.datasets, "qm9_graphs", lambda: graphs)
    scope: dict = {}
    exec(compile(code, str(README), "exec"), scope)
    assert scope["program"].num_compiles == 1
    assert torch.isfinite(scope["loss"])
    assert "nodes" in capsys.readouterr().out
