"""The decisions of Inductor that Torchkiln takes over: they are where we look for them.

What comes of them is tested with native programs (tests/runtime/compile, passes, recompute).
"""

import inspect
from types import SimpleNamespace

import pytest
from torch._inductor import codecache, cpp_builder, ir
from torch._inductor.choices import InductorChoices
from torch._inductor.codegen import cpp
from torch._inductor.fx_passes import post_grad
from torch._inductor.loop_body import LoopBody, MemoryUsageType
from torch._inductor.virtualized import V

from torchkiln.torch_internals._inductor_patches import (
    around_builds,
    biases_stay_apart,
    compiler_replaced,
    concatenated_in_memory_of_their_own,
    fused_only_if,
    kept_whole_if_not_read,
)


def parameters(function):
    return list(inspect.signature(function).parameters)


def test_a_concatenation_asks_for_each_of_its_inputs(monkeypatch):
    kernel = ir.ConcatKernel
    assert parameters(kernel.can_realize_into_without_copy) == ["src", "dst"]
    monkeypatch.setattr(ir, "try_get_name", lambda src: src)
    with (
        V.set_graph_handler(SimpleNamespace(mutated_buffers={"written"})),
        concatenated_in_memory_of_their_own(),
    ):
        assert kernel.can_realize_into_without_copy("written") is False


def test_a_buffer_that_a_loop_does_not_read_is_read_nowhere():
    """In torch it is an error; its one caller takes None for an index that does not fit."""
    assert parameters(LoopBody.get_read_expr) == ["self", "buffer_name"]
    read = SimpleNamespace(buffer_name="read", index_name="index0")
    body = SimpleNamespace(
        memory_usage={MemoryUsageType.LOAD: [read]}, indexing_exprs={"index0": "16*p0 + p1"}
    )
    with pytest.raises(KeyError):
        LoopBody.get_read_expr(body, "other")
    with kept_whole_if_not_read():
        assert LoopBody.get_read_expr(body, "other") is None
        assert LoopBody.get_read_expr(body, "read") == "16*p0 + p1"


def test_what_loops_read_is_compared_with_a_contiguous_index():
    source = inspect.getsource(cpp)
    assert source.count(".get_read_expr(") == 1
    assert "return x == contiguous_index_expr" in source


def test_a_product_with_a_bias_asks_with_the_match():
    assert parameters(post_grad.should_prefer_unfused_addmm) == ["match"]
    value = SimpleNamespace(device=SimpleNamespace(type="cpu"))
    match = SimpleNamespace(kwargs={"inp": SimpleNamespace(meta={"val": value})})
    with biases_stay_apart():
        assert post_grad.should_prefer_unfused_addmm(match) is True


def test_the_pass_that_makes_addmm_looks_the_question_up_by_name():
    """The pattern holds a function of the module, which asks for the name when it runs."""
    source = inspect.getsource(post_grad)
    assert "should_prefer_unfused_addmm(match)" in source


def test_fusion_asks_the_choices_handler():
    assert parameters(InductorChoices.can_fuse) == [
        "scheduler",
        "node1",
        "node2",
        "shared_data_score",
    ]
    asked = []

    def never(first, second):
        asked.append((first, second))
        return False

    with fused_only_if(never):
        assert V.choices.can_fuse(None, "a", "b", 0) is False
    assert asked == [("a", "b")]


def test_headers_and_commands_of_the_compiler_can_be_taken_over(tmp_path):
    assert callable(codecache._precompile_header.__wrapped__)
    assert parameters(codecache._precompile_header.__wrapped__)[:2] == [
        "header",
        "hashable_cmd_line",
    ]
    assert parameters(cpp_builder.run_compile_cmd) == ["cmd_line", "cwd"]
    calls = []

    def precompile(original, header, command_line, **command):
        assert callable(original)
        return f"{codecache._HEADER_DIR}/{header}"

    with compiler_replaced(tmp_path, precompile, lambda line, cwd: calls.append((line, cwd))):
        assert codecache._precompile_header("a.h", "g++") == f"{tmp_path}/a.h"
        cpp_builder.run_compile_cmd("g++ -c a.cpp", "/tmp")
    assert calls == [("g++ -c a.cpp", "/tmp")]


def test_every_build_can_be_watched(monkeypatch):
    monkeypatch.setattr(cpp_builder.CppBuilder, "build", lambda self: "built")
    done = []

    def around(build):
        done.append("before")
        return build()

    with around_builds(around):
        assert cpp_builder.CppBuilder.build(object()) == "built"
    assert done == ["before"]


@pytest.mark.parametrize("name", ["try_get_name", "ConcatKernel"])
def test_names_of_inductors_representation(name):
    assert hasattr(ir, name)
