"""How much arithmetic nodes are: torch's own count, and our operators by hand."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch.utils.flop_counter import FlopCounterMode, flop_registry

import torchkiln.ops  # noqa: F401 - defines them
from torchkiln.runtime.passes._costs import _OWN, flops_of, is_view
from torchkiln.torch_internals._fake_tensors import fake_mode
from torchkiln.torch_internals._fx import record_graph

aten = torch.ops.aten


def nodes_of(function, *inputs):
    mode = fake_mode()
    fakes = [mode.from_tensor(tensor) for tensor in inputs]
    with mode:
        graph = record_graph(function, fakes, {})
    return [node for node in graph.graph.nodes if node.op == "call_function"]


def gradients(function):
    def run(*inputs):
        inputs = [x.detach().requires_grad_(x.is_floating_point()) for x in inputs]
        wanted = [x for x in inputs if x.requires_grad]
        return list(torch.autograd.grad(function(*inputs).sum(), wanted))

    return run


FUNCTIONS = {
    "mm": (lambda a, b: a @ b, [(3, 4), (4, 5)]),
    "addmm": (F.linear, [(3, 4), (5, 4), (5,)]),
    "bmm": (torch.bmm, [(2, 3, 4), (2, 4, 5)]),
    "baddbmm": (torch.baddbmm, [(2, 3, 5), (2, 3, 4), (2, 4, 5)]),
    "convolution": (lambda x, w: F.conv2d(x, w, stride=2, padding=1), [(2, 4, 9, 9), (6, 4, 3, 3)]),
    "grouped": (lambda x, w: F.conv2d(x, w, groups=2), [(2, 4, 9, 9), (6, 2, 3, 3)]),
    "transposed": (F.conv_transpose2d, [(2, 4, 5, 5), (4, 3, 2, 2)]),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_products_and_convolutions_are_those_of_torch(name):
    function, shapes = FUNCTIONS[name]
    inputs = [torch.randn(shape) for shape in shapes]
    with FlopCounterMode(display=False) as counter:
        gradients(function)(*inputs)
    nodes = nodes_of(gradients(function), *inputs)
    registered = [n for n in nodes if getattr(n.target, "overloadpacket", None) in flop_registry]
    assert registered
    assert sum(map(flops_of, registered)) == counter.get_total_flops() > 0


def test_attention_on_the_cpu_is_its_products():
    inputs = [torch.randn(2, 3, 6, 8) for _ in range(3)]
    nodes = nodes_of(gradients(F.scaled_dot_product_attention), *inputs)
    counts = {str(node.target): flops_of(node) for node in nodes if "attention" in str(node.target)}
    product = 2 * (2 * 3) * (6 * 6 * 8)
    name = "aten._scaled_dot_product_flash_attention_for_cpu"
    # Backward computes the scores once more, and four gradients.
    assert counts == {f"{name}.default": 2 * product, f"{name}_backward.default": 5 * product}


def test_anything_else_is_one_operation_for_each_element():
    (node,) = nodes_of(lambda x: [x.sin()], torch.zeros(3, 5))
    assert flops_of(node) == 15
    (total,) = nodes_of(lambda x: [x.sum(0)], torch.zeros(3, 5))
    assert flops_of(total) == 15, "a sum goes through what it reads"
    (wide,) = nodes_of(lambda x, y: [x + y], torch.zeros(3, 1), torch.zeros(1, 5))
    assert flops_of(wide) == 15


def test_views_copies_and_integers_cost_nothing():
    for function in (lambda x: [x.view(15)], lambda x: [x.t()], lambda x: [x.clone()]):
        (node,) = nodes_of(function, torch.zeros(3, 5))
        assert is_view(node)
        assert flops_of(node) == 0
    (index,) = nodes_of(lambda x: [x + 1], torch.zeros(3, dtype=torch.int64))
    assert not is_view(index)
    assert flops_of(index) == 0
    (written,) = nodes_of(lambda x: [x.add_(1.0)], torch.zeros(3))
    assert not is_view(written), "it returns what it was given, but computes"
    assert flops_of(written) == 3


def test_every_own_formula_is_that_of_an_operator():
    for name in _OWN:
        assert hasattr(torch.ops.torchkiln, name), name


def test_a_draw_makes_one_number_for_each_element():
    layout = ([3, 5], [5, 1], torch.float32)
    (node,) = nodes_of(
        lambda x: [torch.ops.torchkiln.draw(None, "uniform", None, *layout, [0.0, 1.0])[0] + x],
        torch.zeros(3, 5),
    )[:1]
    assert flops_of(node) == 15


N, E, W, KNOTS = 7, 11, 4, 20  # nodes, pairs of atoms, features, rows of a table


def tensors(**shapes):
    whole = {"index": torch.int64, "batch": torch.int64, "source": torch.int64, "ways": torch.uint8}
    return {
        name: torch.zeros(shape, dtype=whole.get(name, torch.float32))
        for name, shape in shapes.items()
    }


PAIRS = {"index": (2, E), "batch": (N,)}
X, GRAD, TABLE = {"x": (N, W)}, {"grad": (N, W)}, {"table": (KNOTS, W)}
MESSAGES = 2 * 2 * E * W  # a product and a sum, in both directions
FILTERS = 8 * E * W  # a cubic for each pair and feature
# Operator: tensors by name, other arguments by name, operations counted by hand.
OWN = {
    "cfconv": ({**X, "filters": (E, W), **PAIRS}, {"ways": None, "reverse": False}, MESSAGES),
    "cfconv_edge_products": ({**X, **GRAD, **PAIRS}, {"ways": None, "reverse": False}, MESSAGES),
    "cfconv_table": (
        {**X, **TABLE, "distances": (E,), **PAIRS},
        {"scale": None, "ways": None, "spacing": 0.1, "order": 0, "reverse": False},
        MESSAGES + FILTERS,
    ),
    "cfconv_table_backward": (
        {**X, **GRAD, **TABLE, "distances": (E,), **PAIRS},
        {"scale": None, "ways": None, "spacing": 0.1, "order": 0, "reverse": False},
        2 * (MESSAGES + FILTERS),
    ),
    "cfconv_table_gradient": (
        {**X, **GRAD, "distances": (E,), **PAIRS},
        {
            "scale": None,
            "num_knots": KNOTS,
            "ways": None,
            "spacing": 0.1,
            "order": 0,
            "reverse": False,
        },
        MESSAGES + FILTERS,
    ),
    "cfconv_edge_dots": (
        {**X, **GRAD, **TABLE, "distances": (E,), **PAIRS},
        {"scale": None, "ways": None, "spacing": 0.1, "order": 0, "reverse": False},
        MESSAGES + FILTERS,
    ),
    "softplus_mlp": (
        {
            "x": (N, 3),
            "first": (5, 3),
            "first_bias": (5,),
            "second": (6, 5),
            "second_bias": (6,),
        },
        {"residual": None, "third": None},
        2 * N * (5 * 3 + 6 * 5),
    ),
    "segment_sum": ({**X, "batch": (N,)}, {"num_segments": 3}, N * W),
    # Rows are summed as they are, or gathered from a table that may be much smaller.
    "scatter_sum": ({"x": (E, W), "index": (E,)}, {"num_rows": 3}, E * W),
    "scatter_extreme": (
        {"x": (E, W), "index": (E,)},
        {"num_rows": 3, "largest": True, "base": None, "include_base": False},
        E * W,
    ),
}


def own_node(name, shapes, others):
    """Record a call of an operator with arguments in the order of its schema."""
    operator = getattr(torch.ops.torchkiln, name)
    given = tensors(**shapes)

    def run(*values):
        everything = {**dict(zip(given, values, strict=True)), **others}
        names = [argument.name for argument in operator.default._schema.arguments]
        result = operator(*(everything[n] for n in names if n in everything))
        return list(result) if isinstance(result, tuple) else [result]

    nodes = nodes_of(run, *given.values())
    (node,) = [n for n in nodes if str(n.target).startswith(f"torchkiln.{name}")]
    return node


@pytest.mark.parametrize("name", OWN)
def test_our_operators_by_hand(name):
    shapes, others, expected = OWN[name]
    assert flops_of(own_node(name, shapes, others)) == expected


def test_rows_that_are_gathered_from_a_table_count_each_time():
    shapes = {"x": (N, W), "index": (E,), "source": (E,)}
    assert flops_of(own_node("scatter_sum", shapes, {"num_rows": 3})) == E * W
    weighted = {**shapes, "weight": (E,)}
    assert flops_of(own_node("scatter_sum", weighted, {"num_rows": 3})) == 2 * E * W


@pytest.mark.parametrize("wants_x", [True, False])
@pytest.mark.parametrize("wants_layers", [True, False])
def test_backward_of_layers_by_hand(wants_x, wants_layers):
    shapes = {
        "x": (N, 3),
        "first": (5, 3),
        "second": (6, 5),
        "y": (N, 6),
        "hidden": (N, 5),
        "grad_y": (N, 6),
    }
    others = {"third": None, "grad_z": None, "wants_x": wants_x, "wants_layers": wants_layers}
    inputs = 2 * N * 6 * 5 + (2 * N * 5 * 3 if wants_x else 0)
    weights = 2 * N * (6 * 5 + 5 * 3) if wants_layers else 0
    assert flops_of(own_node("softplus_mlp_backward", shapes, others)) == inputs + weights
