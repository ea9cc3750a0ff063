"""The README's example with molecules."""

from __future__ import annotations

import torch
from _documents import README, blocks_of

import torchkiln.datasets


def test_the_example_with_molecules_trains(monkeypatch, molecules, capsys):
    _, code = blocks_of(README)
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
