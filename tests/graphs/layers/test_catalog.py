"""What of PyG is replaced while a forward is recorded, in versions that lack some of it."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest
import torch
import torch_geometric.nn as pyg

from torchkiln.core import Options
from torchkiln.graphs.layers import _catalog
from torchkiln.graphs.layers._catalog import substitutes
from torchkiln.runtime import inference_model

ROOT = Path(__file__).parents[3]
EDGES = torch.tensor([[0, 1, 2], [1, 2, 0]])


def names() -> set[str]:
    return {f"{substitute.owner.__name__}.{substitute.name}" for substitute in substitutes()}


def test_everything_is_found_in_the_versions_that_are_tested():
    found = names()
    assert {f"{kind}.{method}" for kind, (method, *_) in _catalog._CONVOLUTIONS.items()} <= found
    assert len(found) == 38


def without_a_class(monkeypatch):
    monkeypatch.delattr(pyg, "MFConv")
    return {"MFConv.forward"}


def without_a_method(monkeypatch):
    monkeypatch.delattr(pyg.ChebConv, "__norm__")
    return {"ChebConv.__norm__"}


def without_a_function(monkeypatch):
    monkeypatch.delattr(pyg.pool, "nearest")
    return {"torch_geometric.nn.pool.nearest"}


def without_a_module(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_geometric.nn.conv.han_conv", None)
    return {"torch_geometric.nn.conv.han_conv.group"}


@pytest.mark.parametrize(
    "change", [without_a_class, without_a_method, without_a_function, without_a_module]
)
def test_what_a_version_of_pyg_lacks_is_left_out(monkeypatch, change):
    before = names()
    missing = change(monkeypatch)
    assert before - names() == missing
    layer = pyg.GCNConv(4, 2, add_self_loops=False)
    program = inference_model(layer, Options(backend="capture", show_progress=False))
    x = torch.randn(3, 4)
    assert torch.equal(program(x, EDGES), layer(x, EDGES))


def test_a_package_that_pyg_itself_needs_is_not_taken_for_an_older_pyg(monkeypatch):
    def fail(name):
        raise ModuleNotFoundError("No module named 'scipy'", name="scipy")

    monkeypatch.setattr(importlib, "import_module", fail)
    with pytest.raises(ModuleNotFoundError, match="scipy"):
        substitutes()


def test_the_tested_range_is_the_same_wherever_it_is_stated():
    oldest, newest = re.search(
        r"^PYG_VERSIONS \?= (\S+) (\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE
    ).groups()
    assert f"Tested from {oldest} to {newest}" in (ROOT / "pyproject.toml").read_text()
    assert f"PyG {oldest} to {newest} are tested" in (ROOT / "docs" / "layers.md").read_text()
