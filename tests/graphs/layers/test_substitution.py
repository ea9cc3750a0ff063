"""Substitutes are seen by the recording thread only, and everything is put back."""

from __future__ import annotations

import inspect
import sys
import threading
import types

import pytest
import torch
import torch_geometric.nn as pyg
from torch import nn
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from torchkiln.core import DynamicShapeError, Options
from torchkiln.graphs.layers._catalog import substitutes
from torchkiln.graphs.layers._substitution import Substitute, is_recording, substituted
from torchkiln.runtime import inference_model


def fingerprint() -> list[object]:
    """Return everything that substitution may touch, by identity."""
    found: list[object] = []
    for substitute in substitutes():
        member = vars(substitute.owner)[substitute.name]
        found += [member, getattr(inspect.unwrap(member), "__code__", None)]
    return [*found, nn.modules.batchnorm._BatchNorm.forward]


def static_linear(self, x):
    return x + 1


SUBSTITUTE = Substitute(pyg.Linear, "forward", static_linear)


def test_everything_is_put_back():
    before = fingerprint()
    with substituted(substitutes()):
        inside = fingerprint()
    assert inside != before
    assert fingerprint() == before


def test_everything_is_put_back_after_an_exception():
    before = fingerprint()
    with pytest.raises(KeyError), substituted(substitutes()):
        raise KeyError
    assert fingerprint() == before
    assert not is_recording()


def test_a_failed_capture_puts_everything_back():
    before = fingerprint()
    layer = pyg.GCNConv(3, 3)
    hooks = len(layer._forward_pre_hooks)
    program = inference_model(layer, Options(backend="capture", show_progress=False))
    with pytest.raises(DynamicShapeError):
        program(torch.randn(4, 3), torch.tensor([[0, 1], [1, 2]]))
    assert fingerprint() == before
    assert len(layer._forward_pre_hooks) == hooks


def test_a_substitute_that_cannot_be_installed_leaves_nothing_behind():
    before = pyg.Linear.forward
    with (
        pytest.raises(KeyError, match="nonsense"),
        substituted([SUBSTITUTE, Substitute(pyg.Linear, "nonsense", static_linear)]),
    ):
        pass
    assert pyg.Linear.forward is before


def test_uses_may_be_nested():
    layer, x = pyg.Linear(2, 2), torch.zeros(1, 2)
    original = pyg.Linear.forward
    with substituted([SUBSTITUTE]):
        with substituted([SUBSTITUTE]):
            assert torch.equal(layer(x), x + 1)
        assert torch.equal(layer(x), x + 1)
    assert pyg.Linear.forward is original


def test_other_threads_see_the_original():
    layer, x = pyg.Linear(2, 2), torch.ones(1, 2)
    expected = layer(x)
    seen = []
    with substituted([SUBSTITUTE]):
        thread = threading.Thread(target=lambda: seen.append(layer(x)))
        thread.start()
        thread.join()
        assert torch.equal(layer(x), x + 1)
    assert torch.equal(seen[0], expected)


def test_functions_are_replaced_under_every_name():
    def static(original, *args, **kwargs):
        return "static"

    module = sys.modules["torch_geometric.nn.conv.gcn_conv"]
    edges = torch.tensor([[0, 1], [1, 0]])
    expected = gcn_norm(edges, None, 2)
    with substituted([Substitute(module, "gcn_norm", static, wraps=True)]):
        assert gcn_norm(edges) == "static"  # bound here before the substitution
    for first, second in zip(gcn_norm(edges, None, 2), expected, strict=True):
        assert torch.equal(first, second)


def test_functions_of_torch_cluster_are_static_in_programs(monkeypatch):
    cluster = types.ModuleType("torch_cluster")
    exec("def knn(x, y, k, batch_x=None, batch_y=None): return 'dynamic'", cluster.__dict__)
    monkeypatch.setitem(sys.modules, "torch_cluster", cluster)
    knn = cluster.knn  # as by `from torch_cluster import knn`
    with substituted(substitutes()):
        assert knn(torch.randn(4, 2), torch.randn(3, 2), 2).shape == (2, 6)
    assert knn(None, None, 1) == "dynamic"
