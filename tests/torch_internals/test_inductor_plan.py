"""Inductor's plan of a program's memory, as Torchkiln reads it."""

import dataclasses
import warnings

import pytest
import torch
from torch._inductor import ir
from torch._inductor.codegen.wrapper import PythonWrapperCodegen
from torch._inductor.graph import GraphLowering
from torch._inductor.utils import IndentedBuffer

from torchkiln.torch_internals._fake_tensors import fake_mode_with_sizes
from torchkiln.torch_internals._fx import record_graph
from torchkiln.torch_internals._inductor import compile_graph
from torchkiln.torch_internals._inductor_plan import (
    bytes_of_own,
    call_mark,
    form_of_buffer,
    origins_of,
    plan_lines,
    plans_given_to,
    work_of_part,
)

FIELDS = {
    "AllocateLine": {"node"},
    "FreeLine": {"node"},
    "FreeIfNotReusedLine": {"node", "is_reused"},
    "ReuseLine": {"node", "reused_as"},
    "MultiOutputLine": {"result_name"},
    "ExternKernelAllocLine": {"node"},
    "ExternKernelOutLine": {"node"},
    "ScatterFallbackLine": {"node"},
    "IndexPutFallbackLine": {"node"},
}


@pytest.mark.parametrize("kind", FIELDS)
def test_the_kinds_of_lines_and_what_they_tell(kind):
    fields = {field.name for field in dataclasses.fields(getattr(plan_lines(), kind))}
    assert fields >= FIELDS[kind]


def test_plans_are_read_when_their_passes_are_done(monkeypatch):
    order = []

    def passes(wrapper, is_inference):
        wrapper.lines.append("last")

    monkeypatch.setattr(PythonWrapperCodegen, "run_wrapper_ir_passes", passes)

    def read(lines):
        order.extend(lines)
        return "code"

    header = IndentedBuffer()
    wrapper = type("Wrapper", (), {"lines": ["first"], "header": header})()
    with plans_given_to(read):
        PythonWrapperCodegen.run_wrapper_ir_passes(wrapper, False)
    assert order == ["first", "last"]
    assert "code" in header.getvalue()


@pytest.mark.parametrize("name", ["try_get_buffer", "get_allocation_storage_size"])
def test_the_graph_that_is_lowered_knows_its_buffers(name):
    assert callable(getattr(GraphLowering, name))


def test_buffers_say_what_they_are():
    for name in ("get_inputs_that_alias_output", "get_dtype", "get_name"):
        assert callable(getattr(ir.Buffer, name))
    assert issubclass(ir.FixedLayout, ir.Layout)
    assert issubclass(ir.FlexibleLayout, ir.Layout)


def test_sizes_of_a_graph_lowered_by_inductor():
    """The attributes that exist only on an instance, on the smallest one there is."""
    graph = torch.fx.symbolic_trace(lambda x: (x + 1,))
    lowering = GraphLowering(graph)
    assert lowering.removed_buffers == set()
    assert lowering.graph_inputs == {}
    assert lowering.mutated_buffers == set()
    assert lowering.sizevars.optimization_hint(7) == 7


class _Read(BaseException):
    """Leaves Inductor when its plan was read: no C++ is compiled here."""


def read_plan_of(function, *shapes, read):
    """Let `read` look at the plan of a function while Inductor generates its code."""
    with fake_mode_with_sizes():
        inputs = [torch.empty(shape) for shape in shapes]
        graph = record_graph(function, inputs, {})
    found = []

    def look(lines):
        found.append(read(lines))
        raise _Read

    for node in graph.graph.nodes:
        for key in ("val", "tensor_meta"):
            node.meta.pop(key, None)
    with (
        warnings.catch_warnings(action="ignore", category=FutureWarning),
        pytest.raises(_Read),
        torch.no_grad(),
        plans_given_to(look),
    ):
        compile_graph(graph, inputs, {"aot_inductor.package": True})
    return found[0]


@pytest.fixture(scope="module")
def plan():
    """A product, and a kernel that is generated for what follows it."""

    def function(x, w):
        return [torch.sin(x @ w).sum(1) + 1]

    def read(lines):
        product, fused = [line for line in lines if isinstance(line, call_mark())]
        (written,) = [
            a for a, t in zip(fused.arguments, fused.types, strict=True) if "const" not in t
        ]
        return {
            "product": (product.kernel, product.operator is not None, product.parts),
            "product origins": [node.target for node in origins_of(product.operator)],
            "fused": (fused.kernel, fused.operator, len(fused.parts) > 0),
            "fused origins": {n.target for part in fused.parts for n in origins_of(part.node)},
            "work": [work_of_part(part) for part in fused.parts],
            "forms": {name: form_of_buffer(name) for name in fused.arguments},
            "written": written,
            "own": bytes_of_own(written),
            "input": [
                form_of_buffer(name)
                for name in {d.name for d in product.operator.get_read_writes().reads}
            ],
            "nothing": form_of_buffer("no_such_buffer"),
            "places": [lines.index(product), lines.index(fused)],
        }

    return read_plan_of(function, (6, 4), (4, 50), read=read)


def test_a_mark_stands_behind_the_call_of_an_operator(plan):
    kernel, is_operator, parts = plan["product"]
    assert "mm" in kernel
    assert is_operator
    assert parts == ()
    assert plan["product origins"] == [torch.ops.aten.mm.default]
    assert plan["places"] == sorted(plan["places"])


def test_a_mark_stands_behind_the_call_of_a_generated_kernel(plan):
    kernel, operator, has_parts = plan["fused"]
    assert kernel.startswith("cpp_fused")
    assert operator is None
    assert has_parts
    assert {torch.ops.aten.sin.default, torch.ops.aten.add.Tensor} <= plan["fused origins"]


def test_work_is_what_a_loop_goes_through(plan):
    assert plan["work"][0] == 6 * 50, "a sum goes through what it reads"


def test_buffers_and_inputs_have_a_form(plan):
    assert ([6, 50], torch.float32) in plan["forms"].values()
    assert plan["forms"][plan["written"]] == ([6], torch.float32)
    assert sorted(sizes for sizes, _ in plan["input"]) == [[4, 50], [6, 4]]
    assert plan["nothing"] is None


def test_a_buffer_has_the_bytes_of_its_memory(plan):
    assert plan["own"] is None or plan["own"][0] == 6 * 4


def test_a_mark_becomes_its_statement():
    mark = call_mark()("kernel")
    code = IndentedBuffer()
    mark.codegen(code)
    assert code.getvalue() == ""
    mark.statement = "read();"
    mark.codegen(code)
    assert code.getvalue().strip() == "read();"
    assert call_mark() is call_mark()
