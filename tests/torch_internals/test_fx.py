"""Recording functions as graphs, as Torchkiln relies on it."""

import torch

from torchkiln.torch_internals._fake_tensors import FakeTensor, fake_mode
from torchkiln.torch_internals._fx import (
    counts_places_of_memory,
    is_unannounced_view,
    map_tensors,
    nodes_given_to,
    record_graph,
    tensors_in,
)

aten = torch.ops.aten


def recorded(function, *shapes, decompositions=None):
    mode = fake_mode()
    inputs = [mode.from_tensor(torch.zeros(shape)) for shape in shapes]
    with mode:
        graph = record_graph(function, inputs, decompositions or {})
    return [node for node in graph.graph.nodes if node.op == "call_function"]


def test_backward_is_recorded_below_autograd():
    def gradient(x):
        x = x.detach().requires_grad_()
        return list(torch.autograd.grad(x.sin().sum(), [x]))

    targets = [node.target for node in recorded(gradient, (3,))]
    assert aten.sin.default in targets
    assert aten.cos.default in targets


def test_recorded_nodes_carry_their_results_without_values():
    (node,) = recorded(lambda x, y: [x @ y], (2, 3), (3, 4))
    assert isinstance(node.meta["val"], FakeTensor)
    assert node.meta["val"].shape == (2, 4)


def test_a_decomposition_may_leave_its_operator_alone():
    def without_alpha(a, b, *, alpha=1):
        return NotImplemented if alpha == 1 else a + b * alpha

    rules = {aten.add.Tensor: without_alpha}
    plain = recorded(lambda a, b: [a + b], (2,), (2,), decompositions=rules)
    assert [node.target for node in plain] == [aten.add.Tensor]
    scaled = recorded(lambda a, b: [torch.add(a, b, alpha=3)], (2,), (2,), decompositions=rules)
    assert [node.target for node in scaled] == [aten.mul.Tensor, aten.add.Tensor]


def test_tensors_are_found_in_nested_results():
    a, b, c = torch.zeros(1), torch.zeros(2), torch.zeros(3)
    assert tensors_in([a, (b, {"c": c}), None, 3]) == [a, b, c]
    assert tensors_in(a) == [a]
    assert tensors_in(None) == []


def test_tensors_are_replaced_in_nested_results():
    result = map_tensors(torch.numel, (torch.zeros(4), [torch.zeros(2), "text"]))
    assert result == (4, [2, "text"])


def test_every_node_is_given_away_right_after_it_was_recorded():
    given = []

    def gradient(x):
        x = x.detach().requires_grad_()
        return list(torch.autograd.grad(x.sin().sum(), [x]))

    def note(node):
        assert "val" not in node.meta, "its result comes later"
        given.append(node)

    with nodes_given_to(note), torch.fx.traceback.preserve_node_meta():
        nodes = recorded(gradient, (3,))
    assert [node for node in given if node.op == "call_function"] == nodes
    count = len(given)
    recorded(gradient, (3,))
    assert len(given) == count


def test_what_is_annotated_is_there_when_a_node_is_given_away():
    seen = {}

    def function(x):
        with torch.fx.traceback.annotate({"who": "first"}):
            y = x.sin()
        return [y.cos()]

    def note(node):
        seen[str(node.target)] = node.meta.get("custom", {}).get("who")

    with torch.fx.traceback.preserve_node_meta(), nodes_given_to(note):
        recorded(function, (3,))
    assert seen["aten.sin.default"] == "first"
    assert seen["aten.cos.default"] is None


def test_views_by_places_in_memory_are_told_from_others():
    def views(x):
        return [x.as_strided((2,), (1,), 1), x.view(4), x.t()]

    found = [counts_places_of_memory(node.target) for node in recorded(views, (2, 2))]
    assert found == [True, False, False]
    x = torch.arange(4.0)
    by_places = aten._reshape_alias.default
    assert counts_places_of_memory(by_places)
    assert torch.equal(by_places(x, (2, 2), (1, 2)), torch.tensor([[0.0, 2.0], [1.0, 3.0]]))


def test_one_view_is_not_announced():
    nodes = recorded(lambda x: [torch.nn.functional.linear(x, x[0])], (2, 3, 3))
    (view,) = [node for node in nodes if is_unannounced_view(node.target)]
    assert not any(argument.alias_info for argument in view.target._schema.arguments)
    x = torch.zeros(4)
    assert view.target(x, (2, 2)).data_ptr() == x.data_ptr()
