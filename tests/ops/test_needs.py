"""What a graph or a module will call for is known before it runs."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from torchkiln import Options, inference_model, training_model
from torchkiln.models import MoleculeRegression, SchNet
from torchkiln.ops import _scatter, segment_sum
from torchkiln.ops._needs import natives_of_module
from torchkiln.runtime.call._metadata import ProgramMetadata
from torchkiln.runtime.compile import _builder, _helpers, _progress

CAPTURE = Options(backend="capture", show_progress=False)
needs_compiler = pytest.mark.skipif(
    not _scatter.has_scatter_kernels(), reason="no C++ compiler: aggregations stay torch's"
)


class Pooled(nn.Module):
    """Dropout, a sum over graphs, and a sum by index: three helpers."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, x, batch, index):
        x = nn.functional.dropout(self.layer(x), training=True)
        total = segment_sum(x, batch, 2)
        swapped = torch.zeros_like(total).index_add(0, index, total)
        return nn.functional.mse_loss(swapped, torch.zeros_like(swapped))


def arguments():
    return torch.ones(32, 64), torch.arange(32) // 16, torch.tensor([1, 0])


@needs_compiler
def test_a_program_knows_its_helpers():
    program = training_model(Pooled(), CAPTURE)
    program.compile(*arguments())
    assert program.metadata.natives == ["_mt19937", "_scatter", "_segment_sum"]


@needs_compiler
def test_all_helpers_are_prepared_at_once_before_a_pass_wants_one(monkeypatch):
    asked = []
    monkeypatch.setattr(_progress, "prepare_natives", lambda names, *_: asked.append(set(names)))
    training_model(Pooled(), CAPTURE).compile(*arguments())
    assert asked == [{"_mt19937", "_scatter", "_segment_sum"}]


def test_a_program_without_our_operators_needs_none():
    program = inference_model(nn.Linear(4, 4), CAPTURE)
    program.compile(torch.ones(2, 4))
    assert program.metadata.natives == []


def test_what_a_program_needs_is_kept_with_it():
    program = inference_model(nn.Linear(4, 4), CAPTURE)
    program.compile(torch.ones(2, 4))
    program.metadata.natives.append("_refine")
    plain = program.metadata.to_json()
    assert ProgramMetadata.from_json(plain).natives == ["_refine"]
    del plain["natives"]  # as earlier versions wrote it
    assert ProgramMetadata.from_json(plain).natives == []


def test_modules_declare_what_plain_torch_would_ask_for():
    model = SchNet(hidden_channels=8, num_filters=8, num_interactions=1, num_gaussians=4)
    wanted = {"_cfconv", "_refine", "_segment_sum", "_softplus_mlp"}
    assert natives_of_module(MoleculeRegression(model, "mse")) == wanted
    assert natives_of_module(model.bake()) == wanted
    assert natives_of_module(nn.Linear(2, 2)) == set()
    assert natives_of_module(model.to("meta")) == set()


def test_an_eager_program_prepares_what_its_module_declares(monkeypatch):
    asked = []
    monkeypatch.setattr(_helpers, "missing_natives", lambda names: [])
    monkeypatch.setattr(_helpers, "prepare_natives", asked.append)
    program = inference_model(SchNet(8, 8, 1, 4), Options(backend="eager", show_progress=False))
    nodes = torch.zeros(2, dtype=torch.int64)
    edges = torch.tensor([[0], [1]])
    program.compile(nodes, edges, torch.ones(1), nodes, num_graphs=1)
    assert asked == [{"_cfconv", "_refine", "_segment_sum", "_softplus_mlp"}]


def test_a_program_from_the_cache_prepares_its_helpers_first(monkeypatch, tmp_path):
    """Its executable may be older than the helpers: those are made anew when their code changes."""
    program = inference_model(nn.Linear(4, 4), CAPTURE)
    program.compile(torch.ones(2, 4))
    program.metadata.natives.append("_refine")
    happened = []

    class Cache:
        def lookup(self, key):
            return {"graph": "g", "program": program.metadata.to_json()}

        def holding(self, key):
            return _Held(tmp_path)

    monkeypatch.setattr(
        _builder, "prepare_helpers", lambda names, show_progress: happened.append(names)
    )
    monkeypatch.setattr(_builder, "NativeExecutable", lambda *_: happened.append("loaded"))
    _builder._from_index(Cache(), "key", torch.device("cpu"), show_progress=False)
    assert happened == [{"_refine"}, "loaded"]


class _Held:
    def __init__(self, path):
        self.path = path

    def __enter__(self):
        return self.path

    def __exit__(self, *_):
        pass
