"""Calling Inductor, as Torchkiln relies on it."""

import io
import os
from pathlib import Path

import pytest
import torch

from torchkiln.runtime.compile._inductor_workspace import private_workspace
from torchkiln.torch_internals._fake_tensors import fake_mode_with_sizes
from torchkiln.torch_internals._fx import record_graph
from torchkiln.torch_internals._inductor import (
    compile_graph,
    compiler_error,
    default_workspace,
    load_package,
    write_package,
)
from torchkiln.torch_internals._inductor_patches import around_builds


def add_into(x, y):
    x.add_(y)
    return [x * 2]


@pytest.mark.inductor
@pytest.mark.filterwarnings("ignore::FutureWarning")  # torch's own, about torch
def test_a_graph_becomes_a_package_with_named_entry_points(tmp_path):
    builds = []

    def around(build):
        builds.append(1)
        return build()

    with fake_mode_with_sizes():
        inputs = [torch.empty_strided((4,), (1,)) for _ in range(2)]
        graph = record_graph(add_into, inputs, {})
    graph.graph.set_codegen(torch.fx.graph.CodeGen())
    graph.recompile()
    for node in graph.graph.nodes:
        node.meta.pop("val", None)
        node.meta.pop("tensor_meta", None)
    with torch.no_grad(), private_workspace(), around_builds(around):
        files = compile_graph(graph, inputs, {"aot_inductor.package": True})
    assert builds
    content = io.BytesIO()
    write_package(content, {"step": files})
    path = tmp_path / "program.pt2"
    path.write_bytes(content.getbuffer())

    x, y = torch.ones(4), torch.full((4,), 2.0)
    (result,) = load_package(path, "step", -1).run([x, y])
    assert x.tolist() == [3.0] * 4
    assert result.tolist() == [6.0] * 4


def test_what_is_no_package_is_a_runtime_error(tmp_path):
    path = tmp_path / "no.pt2"
    path.write_bytes(b"no package")
    with pytest.raises(RuntimeError):
        load_package(path, "step", -1)


def test_torchs_own_workspace_is_in_the_temporary_directory(monkeypatch):
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    folder = Path(default_workspace())
    assert folder.name.startswith("torchinductor_")
    assert os.path.isabs(folder)


def test_the_error_of_the_compiler_tells_command_and_output():
    error = compiler_error(["g++", "-c", "x.cpp"], "x.cpp:1: bad")
    assert "g++ -c x.cpp" in str(error)
    assert "x.cpp:1: bad" in str(error)
    assert "C++ compile error" in str(error)
