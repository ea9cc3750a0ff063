"""Inductor's plan of a program's memory, as Torchkiln reads it."""

import dataclasses

import pytest
import torch
from torch._inductor import ir
from torch._inductor.codegen.wrapper import PythonWrapperCodegen
from torch._inductor.graph import GraphLowering
from torch._inductor.utils import IndentedBuffer

from torchkiln.torch_internals._inductor_plan import plan_lines, plans_given_to

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
