"""Every row names the module that did the work, and the line of the user's that asked for it."""

from __future__ import annotations

from collections import defaultdict

import _profiled_models as models
import pytest
import torch
from _profiled_models import expected_modules

from torchkiln import Options, inference_model, training_model
from torchkiln.profiling import plan_program
from torchkiln.profiling.graph._attribution import Lines, attribute_call, longest_loops
from torchkiln.runtime._inspection import EntryView, NodeFacts
from torchkiln.runtime.compile._plan import Plan, PlannedCall, PlannedPart
from torchkiln.runtime.memory._timeline import Timeline
from torchkiln.runtime.passes._origins import Origin, Phase

# Operators that compute nothing: who they belong to is nobody's concern.
NOTHING = ("aten.detach", "aten.t", "aten.view", "aten.clone", "<built-in function getitem>")


def rows(width=8):
    return torch.randn(16, width), torch.randn(16, width)


def sequences():
    return torch.randn(2, 4, 8), torch.randn(2, 4, 8)


def graph():
    return torch.randn(5, 8), torch.randint(0, 5, (2, 9)), torch.randn(5, 8)


CASES = {
    "mixed": (models.Mixed, (models.Mixed, models.Block, models.Square), rows),
    "forces": (models.Forces, (models.Forces,), rows),
    "layers": (models.Layers, (models.Layers,), sequences),
    "graph": (models.Citations, (models.Citations,), graph),
    "chain": (models.Chain, (models.Chain, models.Gated), rows),
}
SMALL = Options(backend="capture", show_progress=False)


def make(case, options=SMALL, training=True):
    kind, sources, make_inputs = CASES[case]
    module, inputs = kind(), make_inputs()
    if training:
        optimizer = torch.optim.Adam(module.parameters(), lr=1e-3)
        return training_model(module, options, optimizer), inputs, expected_modules(*sources)
    return inference_model(module, options), inputs, expected_modules(*sources)


def check(profile, expected):
    """Compare the rows of a profile with what the comments of the model say."""
    found = defaultdict(lambda: defaultdict(set))
    for row in profile.rows:
        if row.phase == "update" or row.operator in NOTHING:
            continue
        line = profile.line_of(row)
        if line is None:
            # The seed of backward, and nothing else.
            assert row.operator == "aten.ones_like", row
            continue
        assert line.file.endswith("_profiled_models.py"), line
        # Parts of torch's own layers count as the layer, whose line is the one that people know.
        owners = expected.get(line.line, ((), ()))[0]
        outer = [owner for owner in owners if owner and row.module.startswith(owner + ".")]
        found[line.line][row.phase].add(outer[0] if outer else row.module)
    assert found.keys() == expected.keys()
    for number, (modules, when) in expected.items():
        assert dict(found[number]) == dict.fromkeys(when, modules), number


@pytest.mark.parametrize("case", CASES)
def test_forward_and_backward_have_the_right_module_and_line(case):
    program, inputs, expected = make(case)
    check(plan_program(program, inputs, {}), expected)


@pytest.mark.parametrize("recompute", [("first",), ("second", "third"), ("",)])
def test_what_is_computed_again_belongs_to_its_line_of_forward(recompute):
    program, inputs, expected = make("chain", SMALL.replace(recompute=recompute))
    profile = plan_program(program, inputs, {})
    check(profile, expected)
    again = {
        (row.module, line.line)
        for row in profile.rows
        if (row.phase, row.operator) == ("backward", "aten.addmm")
        and (line := profile.line_of(row)) is not None
    }
    first = {
        (row.module, line.line)
        for row in profile.rows
        if (row.phase, row.operator) == ("forward", "aten.addmm")
        and any(row.module.startswith(name) for name in recompute)
        and (line := profile.line_of(row)) is not None
    }
    assert again == first


def test_what_a_checkpoint_repeats_has_the_line_that_it_had_in_forward():
    program, inputs, _ = make("mixed")
    profile = plan_program(program, inputs, {})
    for operator in ("aten.sin", "aten.tanh"):
        forward, again = [row for row in profile.rows if row.operator == operator]
        assert (forward.phase, again.phase) == ("forward", "backward")
        assert (forward.module, forward.line) == (again.module, again.line)
        assert forward.module == "block"


def test_random_numbers_belong_to_who_draws_them():
    program, inputs, _ = make("mixed")
    profile = plan_program(program, inputs, {})
    draws = [row for row in profile.rows if row.operator == "torchkiln.draw"]
    assert [(row.module, profile.line_of(row).code.split("(")[0]) for row in draws] == [
        ("", "x = torch.bernoulli"),
        ("dropout", "x = self.dropout"),
    ]


@pytest.mark.parametrize("accumulation", [1, 2])
def test_rows_of_the_update_name_their_parameter(accumulation):
    options = SMALL.replace(gradient_accumulation=accumulation, device_iterations=2)
    kind, _, _ = CASES["chain"]
    module = kind()
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-3)
    program = training_model(module, options, optimizer)
    inputs = [torch.randn(32 * accumulation, 8) for _ in range(2)]
    profile = plan_program(program, tuple(inputs), {})
    check(profile, expected_modules(models.Chain, models.Gated))
    kinds = {name: type(child).__name__ for name, child in module.named_modules()}
    for row in profile.rows:
        if row.parameter:
            assert row.phase == "update"
            assert row.operator == "update"
            assert row.line is None
            assert row.module == row.parameter.rpartition(".")[0]
            assert row.module_kind == kinds[row.module]
    named = {row.parameter for row in profile.rows if row.phase == "update"} - {""}
    assert named == dict(module.named_parameters()).keys()
    runs = {call.entry: call.runs for call in profile.calls}
    assert runs == ({"step": 1.0} if accumulation == 1 else {"accumulate": 2.0, "update": 1.0})
    assert profile.steps_per_call == 2
    assert profile.micro_batches_per_step == accumulation


@pytest.mark.parametrize("case", ["mixed", "chain", "layers", "graph"])
def test_inference_is_forward_only(case):
    program, inputs, expected = make(case, training=False)
    program.module.eval()
    profile = plan_program(program, inputs, {})
    assert {row.phase for row in profile.rows} == {"forward"}
    assert {call.entry for call in profile.calls} == {"infer"}
    lines = {line.line for row in profile.rows if (line := profile.line_of(row)) is not None}
    assert lines <= expected.keys()


def kernel(*parts, generated=True):
    return PlannedCall("kernel", generated, tuple(PlannedPart(*part) for part in parts), (), (), 0)


def attributed(*kernels):
    """Return calls and rows of kernels that compute nodes of 1000 operations each."""
    plan = Plan(kernels, (), "")
    facts = tuple(NodeFacts(f"aten.op{number}", 1000, False) for number in range(3))
    view = EntryView(Timeline(plan, [Origin(phase=Phase.FORWARD)] * 3), facts)
    most = longest_loops(kernels)
    return [
        attribute_call(place, "step", view, call, 1.0, 1.0, {}, Lines(), (), most)
        for place, call in enumerate(kernels)
    ]


def test_the_end_of_a_reduction_is_not_credited_with_all_of_it():
    """It would seem faster than any machine, and would raise the peak that others are held to."""
    (loop, _), (end, _), (again, _) = attributed(
        kernel((500, (0,))), kernel((1, (0,))), kernel((1, (0,)), (500, (0,)))
    )
    assert (loop.flops, end.flops, again.flops) == (1000, 2, 1000)


def test_a_call_of_a_library_does_all_of_its_node():
    (product, _), _ = attributed(kernel((1, (0,)), generated=False), kernel((500, (0,))))
    assert product.flops == 1000


def test_operators_of_one_line_in_one_kernel_are_an_estimate():
    (_, alone), (_, both) = attributed(kernel((5, (0,))), kernel((5, (1, 2))))
    assert [row.is_estimate for row in alone] == [False]
    assert [row.is_estimate for row in both] == [True, True]
