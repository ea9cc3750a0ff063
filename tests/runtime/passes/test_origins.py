"""Numbers and origins of recorded nodes: what later graphs still know of them."""

from __future__ import annotations

import contextlib
import linecache

import pytest
import torch
from torch import fx, nn

from torchkiln.runtime.passes._numbers import graph_digest, number_nodes, numbers_of
from torchkiln.runtime.passes._origins import (
    Origin,
    Phase,
    following_modules,
    joint_origin,
    latest,
    origin,
    origins_of,
    updating,
)
from torchkiln.runtime.passes._source_lines import Line, current_line, is_of_model

FORWARD, BACKWARD, UPDATE = Phase.FORWARD, Phase.BACKWARD, Phase.UPDATE


def chain():
    """Return x -> sin -> cos -> add, and its nodes by name."""

    def function(x):
        return torch.add(torch.cos(torch.sin(x)), x)

    graph = fx.symbolic_trace(function)
    return graph, {node.name: node for node in graph.graph.nodes}


def mark(node, module, phase):
    node.meta["custom"] = {"torchkiln": Origin(module, phase)}


def test_numbers_are_places_and_stay_with_nodes():
    graph, nodes = chain()
    number_nodes(graph)
    assert [numbers_of(nodes[name]) for name in ("sin", "cos", "add")] == [[1], [2], [3]]
    graph.graph.erase_node(graph.graph.output_node())
    copied = fx.Graph()
    copied.graph_copy(graph.graph, {})
    assert [numbers_of(node) for node in copied.nodes if node.name == "cos"] == [[2]]


def test_nodes_that_share_what_they_carry_have_numbers_of_their_own():
    graph, nodes = chain()
    shared = {"torchkiln": Origin("a", FORWARD)}
    for node in nodes.values():
        node.meta["custom"] = shared
    number_nodes(graph)
    assert [numbers_of(nodes[name]) for name in ("sin", "cos")] == [[1], [2]]
    assert shared == {"torchkiln": Origin("a", FORWARD)}


def test_a_node_that_was_put_in_counts_as_what_it_reads_or_else_what_reads_it():
    graph, nodes = chain()
    number_nodes(graph)
    with graph.graph.inserting_after(nodes["sin"]):
        after = graph.graph.call_function(torch.clone, (nodes["sin"],))
    assert numbers_of(after) == [1]
    with graph.graph.inserting_before(nodes["sin"]):
        before = graph.graph.call_function(torch.clone, (nodes["x"],))
    nodes["sin"].args = (before,)
    assert numbers_of(before) == [1]
    with graph.graph.inserting_before(nodes["add"]):
        both = graph.graph.call_function(torch.mul, (after, nodes["cos"]))
    assert numbers_of(both) == [2], "the nearest"


def test_a_digest_is_that_of_operators_and_not_of_names():
    one, nodes = chain()
    other, _ = chain()
    assert graph_digest(one) == graph_digest(other) == number_nodes(one)
    nodes["x"].target = "another_name"
    assert graph_digest(one) == graph_digest(other)
    nodes["cos"].target = torch.tan
    assert graph_digest(one) != graph_digest(other)


def test_origins_of_nodes_that_passes_put_in():
    graph, nodes = chain()
    mark(nodes["sin"], "a", FORWARD)
    mark(nodes["add"], "b", BACKWARD)
    found = dict(zip(graph.graph.nodes, origins_of(graph), strict=True))
    assert found[nodes["cos"]] == Origin("a", FORWARD)
    assert found[nodes["add"]] == Origin("b", BACKWARD)
    assert found[nodes["x"]] == Origin()
    assert origin(nodes["cos"]) == Origin()


def test_the_latest_phase_counts():
    early, late = Origin("a", FORWARD), Origin("b", BACKWARD)
    assert latest([early, late, Origin("c", BACKWARD)]) == late
    assert latest([]) == Origin()
    _, nodes = chain()
    mark(nodes["sin"], "a", FORWARD)
    mark(nodes["cos"], "b", BACKWARD)
    assert joint_origin([nodes["x"], nodes["sin"], nodes["cos"]]) == late


def test_parameters_are_told_for_a_while():
    from torchkiln.runtime.passes import _origins

    with updating("a.weight"):
        with updating("b.weight"):
            assert _origins._updated == "b.weight"
        assert _origins._updated == "a.weight"
    with pytest.raises(ValueError, match="x"), updating("a.weight"):
        raise ValueError("x")
    assert _origins._updated == ""


def test_modules_are_followed_by_name_and_left_by_exceptions():
    seen = []

    @contextlib.contextmanager
    def around(name, args, kwargs):
        seen.append(name)
        try:
            yield
        finally:
            seen.append(f"-{name}")

    module = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Tanh()))
    stranger = nn.Linear(2, 2)
    with following_modules(module, around):
        module(torch.zeros(1, 2))
        stranger(torch.zeros(1, 2))
        with pytest.raises(RuntimeError):
            module(torch.zeros(1, 3))
    assert seen == ["", "0", "-0", "1", "1.0", "-1.0", "-1", "-", "", "0", "-0", "-"]


# -- lines ------------------------------------------------------------------------------------


class Line3(nn.Module):
    def forward(self, found):
        found.append(current_line((outermost.__code__,)))


def outermost(run):
    return run()


def test_a_line_is_the_innermost_of_the_users():
    found = []
    outermost(lambda: nn.Sequential(Line3())(found))
    (line,) = found
    assert line.file == __file__
    assert line.function == "forward"
    assert "current_line" in linecache.getline(__file__, line.number)
    assert is_of_model(line)


def test_outside_of_a_forward_no_line_is_known():
    assert current_line((outermost.__code__,)) is None
    assert not is_of_model(None)


def test_lines_inside_of_layers_are_told_only_if_nothing_else_is_there():
    layer = Line(nn.Linear.forward.__code__.co_filename, 1, "forward")
    assert not is_of_model(layer)
    assert not is_of_model(Line("/tmp/torch_geometric.nn.conv.gcn_conv_x.py", 1, "propagate"))
    assert is_of_model(Line("/home/somebody/model.py", 1, "forward"))
