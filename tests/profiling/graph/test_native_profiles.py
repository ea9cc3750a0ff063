"""Profiles of native code: two programs, compiled once for all tests of this file."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import _profiled_models as models
import pytest
import torch
from _profiled_models import expected_modules

from torchkiln import Options, load, training_model
from torchkiln.core import ExecutableError
from torchkiln.profiling import load_profile, plan_program, profile_program
from torchkiln.runtime.compile import _inductor
from torchkiln.runtime.compile._plan import Plan

pytestmark = pytest.mark.inductor
# Sums of many floats in another order.
ROUNDING = 1e-9


def inputs_of(rows):
    generator = torch.Generator().manual_seed(7)
    return tuple(torch.randn(rows, 8, generator=generator) for _ in range(2))


def make(kind, options):
    torch.manual_seed(3)
    module = kind()
    return training_model(module, options, torch.optim.Adam(module.parameters(), lr=1e-2))


@pytest.fixture(scope="module")
def native(cache_dir):
    return Options(backend="inductor", cache_dir=cache_dir, show_progress=False)


@pytest.fixture(scope="module")
def mixed(native):
    """Everything in one entry point."""
    program, inputs = make(models.Mixed, native), inputs_of(16)
    program.compile(*inputs)
    sources = (models.Mixed, models.Block, models.Square)
    return SimpleNamespace(
        program=program,
        inputs=inputs,
        expected=expected_modules(*sources),
        profile=profile_program(program, inputs, {}, seconds=0.0),
    )


@pytest.fixture(scope="module")
def accumulating(native):
    """Two entry points, which run four times and twice in a call."""
    options = native.replace(gradient_accumulation=2, device_iterations=2)
    program, inputs = make(models.Chain, options), inputs_of(64)
    program.compile(*inputs)
    return SimpleNamespace(
        program=program,
        inputs=inputs,
        expected=expected_modules(models.Chain, models.Gated),
        profile=profile_program(program, inputs, {}, seconds=0.0),
    )


@pytest.fixture(params=["mixed", "accumulating"])
def case(request):
    return request.getfixturevalue(request.param)


def test_times_add_up(case):
    profile, times = case.profile, case.profile.times
    assert sum(row.us for row in profile.rows) == pytest.approx(times.executable_us, rel=ROUNDING)
    assert sum(call.us for call in profile.calls) == pytest.approx(
        times.executable_us, rel=ROUNDING
    )
    assert times.executable_us + times.outside_us == pytest.approx(times.step_us, rel=ROUNDING)
    assert times.outside_us > 0
    for call in profile.calls:
        rows = [row for row in profile.rows if row.call == call.index]
        assert sum(row.us for row in rows) == pytest.approx(call.us, rel=ROUNDING)
        assert sum(row.flops for row in rows) == pytest.approx(call.flops * call.runs, rel=ROUNDING)
        assert call.us > 0
    steps = profile.steps_per_call
    assert (times.steps_measured, times.steps_used) == (10 * steps, 5 * steps)


def test_every_row_has_its_module_and_line(case):
    profile = case.profile
    seen = set()
    for row in profile.rows:
        line = profile.line_of(row)
        if row.phase == "update":
            assert row.parameter
            assert line is None
            continue
        if line is None:
            assert row.operator == "aten.ones_like"  # the seed of backward
            continue
        assert line.file.endswith("_profiled_models.py")
        modules, phases = case.expected[line.line]
        assert row.module in modules, (row, line)
        # Backward may repeat what is cheap.
        assert row.phase in phases or row.phase == "backward", (row, line)
        seen.add(line.line)
    assert seen == case.expected.keys()


def test_rows_of_the_update_name_all_parameters(case):
    named = {row.parameter for row in case.profile.rows if row.phase == "update"}
    assert named == dict(case.program.module.named_parameters()).keys()


def test_entries_run_as_often_as_the_options_say(mixed, accumulating):
    assert {call.entry: call.runs for call in mixed.profile.calls} == {"step": 1.0}
    runs = {call.entry: call.runs for call in accumulating.profile.calls}
    assert runs == {"accumulate": 2.0, "update": 1.0}


def test_products_of_all_layers_are_there(accumulating):
    """Forward and two products of backward for each layer; the first is called twice."""
    profile = accumulating.profile
    products = [row for row in profile.rows if row.operator in ("aten.addmm", "aten.mm")]
    by_module = {
        name: sum(row.flops for row in products if row.module == name)
        for name in ("first.0", "second.gate", "third.gate")
    }
    one = 2 * 16 * 8 * 8 * 2  # of a micro-batch of 16 rows, twice a step
    # Nobody asks for the gradient of the arguments.
    assert by_module == {"first.0": 5 * one, "second.gate": 3 * one, "third.gate": 3 * one}


def test_memory_at_the_peak_is_that_of_the_memory_report(case):
    liveness = case.profile.liveness
    assert sum(block.size_bytes for block in liveness.blocks if block.at_peak) == (
        liveness.peak_bytes
    )
    report = case.program.memory_report(*case.inputs)
    assert liveness.total_bytes == report.total_bytes
    for block in liveness.blocks:
        alive = block.born <= liveness.peak_call <= block.last
        assert block.at_peak == alive


def test_numbers_of_calls_mean_the_same_nodes_in_every_recording(case):
    """What is planned now names the same operations as what was compiled then."""
    fresh = make(type(case.program.module), case.program.options)
    planned = plan_program(fresh, case.inputs, {})
    assert fresh.num_compiles == 0
    assert not fresh.is_compiled
    told = [(call.kernel, call.operations) for call in case.profile.calls]
    assert [(call.kernel, call.operations) for call in planned.calls] == told
    assert planned.times is None
    assert {row.us for row in planned.rows} == {None}


def test_a_program_from_the_cache_is_profiled_without_compiling(case, monkeypatch):
    def fail(*args, **kwargs):
        raise AssertionError("nothing must be compiled")

    monkeypatch.setattr(_inductor, "compile_graph", fail)
    program = make(type(case.program.module), case.program.options)
    profile = program.profile(*case.inputs)
    assert program.num_compiles == 0
    assert profile.from_cache
    assert [call.operations for call in profile.calls] == [
        call.operations for call in case.profile.calls
    ]


def test_a_profile_changes_nothing(case):
    """Weights, state, buffers and random numbers are as before, and so are the losses after it."""
    plain, profiled = (make(type(case.program.module), case.program.options) for _ in range(2))
    torch.manual_seed(11)
    expected = [plain(*case.inputs) for _ in range(6)]
    torch.manual_seed(11)
    losses = [profiled(*case.inputs) for _ in range(3)]
    before = (
        copy.deepcopy(profiled.module.state_dict()),
        copy.deepcopy(profiled.optimizer.state_dict()),
        torch.get_rng_state(),
    )
    profile_program(profiled, case.inputs, {}, seconds=0.0)
    after = (
        profiled.module.state_dict(),
        profiled.optimizer.state_dict(),
        torch.get_rng_state(),
    )
    torch.testing.assert_close(after, before, rtol=0, atol=0)
    losses += [profiled(*case.inputs) for _ in range(3)]
    torch.testing.assert_close(losses, expected, rtol=0, atol=0)
    assert len({float(loss.sum()) for loss in losses}) == 6, "steps that do nothing prove nothing"


def test_clocks_are_read_only_while_somebody_asks(mixed):
    executable = mixed.program.built.executable
    marks = executable.marks["step"]
    plan = Plan.from_json(marks.plan_text)
    marks.take()
    mixed.program(*mixed.inputs)
    assert not marks.take().any()
    told = []
    with mixed.program.executor.clocked(lambda name, read: told.append((name, read()))):
        mixed.program(*mixed.inputs)
    ((name, durations),) = told
    assert name == "step"
    assert len(durations) == len(plan.calls) == len(mixed.profile.calls)
    assert (durations > 0).all()
    mixed.program(*mixed.inputs)
    assert len(told) == 1
    assert not marks.take().any()


def test_a_model_that_changed_since_is_refused(mixed):
    mixed.program.module.eval()
    try:
        with pytest.raises(ExecutableError, match=r"train\(\) or eval\(\).*destroy\(\)"):
            mixed.program.profile(*mixed.inputs)
    finally:
        mixed.program.module.train()
    mixed.program.profile(*mixed.inputs)


def test_a_program_from_a_file_has_its_report(mixed, native, tmp_path):
    options = native.replace(profile_dir=tmp_path / "profiles")
    program = make(models.Mixed, options)
    program.compile(*mixed.inputs)
    program.export(tmp_path / "exported")
    module = models.Mixed()
    optimizer = torch.optim.Adam(module.parameters())
    for chosen in (None, options):
        loaded = load(tmp_path / "exported", module, optimizer, chosen)
        loaded(*mixed.inputs)
        loaded.destroy()
        # The folder of those who made the file is not the folder of those who use it.
        assert (tmp_path / "profiles").exists() == (chosen is not None)
    assert load_profile(tmp_path / "profiles").times.steps_measured == 1
    assert load_profile(tmp_path / "profiles").name == "training"
    program.destroy()


class Partly(models.Chain):
    """Holds a parameter that no gradient reaches."""

    def __init__(self):
        super().__init__()
        self.unused = torch.nn.Linear(2, 2)


def test_parameters_without_gradient_do_not_hinder_a_profile_after_training(native):
    program, inputs = make(Partly, native), inputs_of(16)
    for _ in range(2):
        program(*inputs)
    profile = profile_program(program, inputs, {}, seconds=0.0)
    assert sum(row.us for row in profile.rows) == pytest.approx(profile.times.executable_us)
