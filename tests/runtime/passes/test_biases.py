"""Biases are added after products, with the same numbers, and stay there in native code."""

import zipfile

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from torchkiln import Options, inference_model
from torchkiln.runtime.passes._biases import add_biases_after_products

aten = torch.ops.aten


def targets(graph):
    return [node.target for node in graph.graph.nodes if node.op == "call_function"]


def test_a_bias_is_added_after_the_product():
    layer, x = nn.Linear(5, 3), torch.randn(4, 5)
    graph = make_fx(lambda w, b, x: nn.functional.linear(x, w, b), tracing_mode="fake")(
        layer.weight, layer.bias, x
    )
    assert aten.addmm.default in targets(graph)
    add_biases_after_products(graph)
    assert aten.addmm.default not in targets(graph)
    torch.testing.assert_close(graph(layer.weight, layer.bias, x), layer(x))


@pytest.mark.parametrize("scaled", [False, True], ids=["full", "scaled"])
def test_other_sums_with_products_stay_what_they_are(scaled):
    """Full-sized summands, and factors that an addition would lose."""
    bias = torch.randn(3) if scaled else torch.randn(4, 3)
    arguments = (bias, torch.randn(4, 5), torch.randn(5, 3))
    factors = {"alpha": 2.0} if scaled else {}
    graph = make_fx(lambda b, x, w: torch.addmm(b, x, w, **factors), tracing_mode="fake")(
        *arguments
    )
    want = torch.addmm(*arguments, **factors)
    add_biases_after_products(graph)
    assert aten.addmm.default in targets(graph)
    torch.testing.assert_close(graph(*arguments), want)


@pytest.mark.inductor
def test_native_code_copies_no_bias(tmp_path):
    model = nn.Sequential(nn.Linear(16, 8), nn.Softplus(), nn.Linear(8, 4))
    program = inference_model(model, Options(cache_dir=tmp_path, show_progress=False))
    x = torch.randn(32, 16)
    torch.testing.assert_close(program(x), model(x))
    (package,) = tmp_path.rglob("*.pt2")
    with zipfile.ZipFile(package) as files:
        names = [name for name in files.namelist() if name.endswith(".wrapper.cpp")]
        code = "".join(files.read(name).decode() for name in names)
    assert "cpu_mm_out" in code
    assert "cpu_addmm_out" not in code
