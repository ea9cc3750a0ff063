"""Profiles of recorded graphs: what a run leaves as it was, what it refuses, and what adds up."""

from __future__ import annotations

import copy
import threading
import time

import _profiled_models as models
import pytest
import torch
from torch import nn

from torchkiln import Options, inference_model, training_model
from torchkiln.core import ExecutableError
from torchkiln.profiling import GraphProfile, plan_program, profile_program
from torchkiln.profiling.graph import _peaks
from torchkiln.profiling.graph._recorder import CallRecorder, MeasuredCall, quiet_half
from torchkiln.runtime.execute._executable import GraphExecutable

SMALL = Options(backend="capture", show_progress=False)
ROUNDING = 1e-9


def rows(count=16):
    return tuple(torch.randn(count, 8) for _ in range(2))


def make(kind=models.Mixed, options=SMALL):
    torch.manual_seed(3)
    module = kind()
    return training_model(module, options, torch.optim.Adam(module.parameters(), lr=1e-2))


def quick(program, inputs):
    return profile_program(program, inputs, {}, seconds=0.0)


@pytest.mark.parametrize(
    "settings",
    [{}, {"gradient_accumulation": 2}, {"device_iterations": 3}, {"replication_factor": 2}],
    ids=str,
)
def test_times_add_up(settings):
    options = SMALL.replace(**settings)
    program = make(models.Chain, options)
    count = 16 * options.device_iterations * options.micro_batches_per_update
    profile = quick(program, rows(count))
    times = profile.times
    assert sum(row.us for row in profile.rows) == pytest.approx(times.executable_us, rel=ROUNDING)
    assert sum(call.us for call in profile.calls) == pytest.approx(
        times.executable_us, rel=ROUNDING
    )
    assert times.executable_us + times.outside_us == pytest.approx(times.step_us, rel=ROUNDING)
    assert times.steps_measured == 10 * options.device_iterations
    assert profile.steps_per_call == options.device_iterations
    assert (times.waiting_us, times.other_us) == (None, None)


def test_inference_counts_micro_batches():
    options = SMALL.replace(device_iterations=3)
    program = inference_model(models.Chain().eval(), options)
    profile = quick(program, rows(48))
    assert not profile.training
    assert profile.steps_per_call == 3
    assert {call.runs for call in profile.calls} == {1.0}
    assert profile.times.executable_us + profile.times.outside_us == pytest.approx(
        profile.times.step_us, rel=ROUNDING
    )


@pytest.mark.parametrize("settings", [{}, {"gradient_accumulation": 2}], ids=str)
def test_a_profile_changes_nothing(settings):
    """Weights, state, buffers and random numbers are as before, and so are the losses after it."""
    options = SMALL.replace(**settings)
    plain, profiled = make(options=options), make(options=options)
    inputs = rows(16 * options.gradient_accumulation)
    torch.manual_seed(11)
    expected = [plain(*inputs) for _ in range(6)]
    torch.manual_seed(11)
    losses = [profiled(*inputs) for _ in range(3)]
    state = (profiled.module.state_dict(), profiled.optimizer.state_dict())
    before, generator = copy.deepcopy(state), torch.get_rng_state()
    assert isinstance(profiled.profile(*inputs), GraphProfile)
    after = (profiled.module.state_dict(), profiled.optimizer.state_dict())
    torch.testing.assert_close(after, before, rtol=0, atol=0)
    assert torch.equal(torch.get_rng_state(), generator)
    losses += [profiled(*inputs) for _ in range(3)]
    torch.testing.assert_close(losses, expected, rtol=0, atol=0)
    assert len({float(loss.sum()) for loss in losses}) == 6, "steps that do nothing prove nothing"


def test_a_profile_before_the_first_step_changes_nothing():
    plain, profiled = make(), make()
    inputs = rows()
    torch.manual_seed(11)
    expected = [plain(*inputs) for _ in range(3)]
    profiled.profile(*inputs)
    torch.manual_seed(11)
    assert torch.equal(torch.stack([profiled(*inputs) for _ in range(3)]), torch.stack(expected))


class Writing(nn.Module):
    """Counts in a buffer, and writes to its argument."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x, target, log):
        self.count += 1
        log.add_(1.0)
        return nn.functional.mse_loss(self.linear(x), target)


def test_arguments_that_forward_writes_to_are_as_before():
    program = make(Writing)
    inputs = (*rows(), torch.zeros(3))
    kept = [tensor.clone() for tensor in inputs]
    program.profile(*inputs)
    torch.testing.assert_close(list(inputs), kept, rtol=0, atol=0)
    assert float(program.module.count) == 0


def test_what_fails_in_between_leaves_everything_as_it_was(monkeypatch):
    program = make()
    inputs = rows()
    program(*inputs)
    before = copy.deepcopy(program.module.state_dict())
    count = 0
    original = CallRecorder.call

    def fail(self, *args):
        nonlocal count
        count += 1
        if count == 4:
            raise KeyboardInterrupt
        return original(self, *args)

    monkeypatch.setattr(CallRecorder, "call", fail)
    with pytest.raises(KeyboardInterrupt):
        program.profile(*inputs)
    torch.testing.assert_close(program.module.state_dict(), before, rtol=0, atol=0)


def in_another_thread_meanwhile(monkeypatch, act, program, inputs):
    """Profile a program while another thread acts, and return the profile."""
    is_measured = threading.Event()
    original = CallRecorder.call

    def call(self, *args):
        if not is_measured.is_set():
            is_measured.set()
            time.sleep(0.1)  # for the other thread
        return original(self, *args)

    def wait_and_act():
        is_measured.wait(60)
        act()

    monkeypatch.setattr(CallRecorder, "call", call)
    thread = threading.Thread(target=wait_and_act)
    thread.start()
    profile = quick(program, inputs)
    thread.join()
    return profile


def test_a_step_in_another_thread_waits_and_is_not_undone(monkeypatch):
    plain, profiled = make(models.Chain), make(models.Chain)
    inputs = rows()
    for program in (plain, profiled):
        program(*inputs)
    plain(*inputs)
    profile = in_another_thread_meanwhile(monkeypatch, lambda: profiled(*inputs), profiled, inputs)
    assert profile.times.steps_measured == 10, "those of the profile alone"
    torch.testing.assert_close(
        profiled.module.state_dict(), plain.module.state_dict(), rtol=0, atol=0
    )


def test_a_program_is_not_destroyed_under_its_profile(monkeypatch):
    program, inputs = make(models.Chain), rows()
    profile = in_another_thread_meanwhile(monkeypatch, program.destroy, program, inputs)
    assert profile.times.steps_measured == 10
    assert not program.is_compiled


def test_a_profile_by_name_and_by_place_is_the_same():
    program = make(models.Chain)
    x, target = rows()
    by_name = program.profile(target=target, x=x)
    assert [row.operator for row in by_name.rows] == [
        row.operator for row in program.profile(x, target).rows
    ]
    assert by_name.inputs == ("x: float32[16, 8]", "target: float32[16, 8]")


def test_plain_python_is_refused_with_the_remedy():
    program = make(options=SMALL.replace(backend="eager"))
    with pytest.raises(ExecutableError, match=r"backend='inductor' or backend='capture'"):
        program.profile(*rows())


def test_a_plan_runs_nothing(monkeypatch):
    def fail(*args):
        raise AssertionError("nothing must run")

    monkeypatch.setattr(GraphExecutable, "entry", fail)
    program = make()
    profile = plan_program(program, rows(), {})
    assert not program.is_compiled
    assert profile.times is None
    assert profile.peaks is None
    assert {row.us for row in profile.rows} == {call.us for call in profile.calls} == {None}
    assert profile.liveness.peak_bytes > 0


def test_memory_at_the_peak_is_that_of_the_memory_report():
    program = make()
    inputs = rows()
    profile = quick(program, inputs)
    blocks = [block for block in profile.liveness.blocks if block.at_peak]
    assert sum(block.size_bytes for block in blocks) == profile.liveness.peak_bytes
    assert profile.liveness.total_bytes == program.memory_report(*inputs).total_bytes
    parameters = sum(tensor.nbytes for tensor in program.module.state_dict().values())
    assert profile.liveness.always["parameters and buffers"] == parameters
    kinds = {block.kind for block in profile.liveness.blocks}
    assert kinds == {"activation", "gradient", "temporary"}


def test_the_quiet_half_is_the_faster_one():
    calls = [MeasuredCall(wall, {}, {}) for wall in (5, 1, 9, 3, 7)]
    assert [call.wall_ns for call in quiet_half(calls)] == [1, 3, 5]
    assert quiet_half(calls[:1]) == calls[:1]


def test_waits_that_lie_in_each_other_count_once():
    recorder = CallRecorder()
    recorder._waits = [(10, 30), (15, 20), (25, 40), (90, 200)]
    assert recorder._waited(0, 100) == 40
    assert recorder._waits == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_measuring_the_machine_draws_no_random_numbers(monkeypatch, dtype):
    monkeypatch.setattr("torchkiln.profiling.graph._peaks._SECONDS", 0.0)
    monkeypatch.setattr("torchkiln.profiling.graph._peaks._ELEMENTS", 64)
    dtypes = []
    monkeypatch.setattr(torch, "mm", lambda a, b, out: dtypes.append(a.dtype))
    before, default = torch.get_rng_state(), torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        _peaks._measure.__wrapped__(1)
    finally:
        torch.set_default_dtype(default)
    assert torch.equal(torch.get_rng_state(), before)
    assert set(dtypes) == {torch.float32}


class Partly(models.Chain):
    """Holds a parameter that no gradient reaches."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Linear(2, 2)


def test_parameters_without_gradient_do_not_hinder_a_profile_after_training():
    """They have no step count, so that today's arrangement would be another than the compiled."""
    program = make(Partly)
    inputs = rows()
    for _ in range(2):
        program(*inputs)
    profile = quick(program, inputs)
    assert sum(row.us for row in profile.rows) == pytest.approx(profile.times.executable_us)
    assert profile.liveness.total_bytes == program.memory_report(*inputs).total_bytes


def load(program, earlier):
    program.optimizer.load_state_dict(earlier)


def clear(program, _):
    program.optimizer.state.clear()


def swap(program, _):
    program.module.first[0].weight.data = torch.ones(8, 8)


def put_in(program, _):
    program.module.norm.running_mean = torch.full((8,), 3.0)


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        (models.Chain, load),
        (models.Chain, clear),
        (models.Chain, swap),
        (models.Mixed, put_in),
    ],
)
def test_what_was_loaded_or_replaced_just_before_stays(kind, change):
    inputs = rows()
    plain, profiled = make(kind), make(kind)
    for program in (plain, profiled):
        torch.manual_seed(11)
        program(*inputs)
        earlier = copy.deepcopy(program.optimizer.state_dict())
        for _ in range(3):
            program(*inputs)
        change(program, earlier)
    quick(profiled, inputs)
    ends = []
    for program in (plain, profiled):
        torch.manual_seed(12)
        for _ in range(2):
            program(*inputs)
        ends.append((program.module.state_dict(), program.optimizer.state_dict()))
    torch.testing.assert_close(ends[1], ends[0], rtol=0, atol=0)


class Switched(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.use_sine = True

    def forward(self, x, target):
        x = self.linear(x)
        x = torch.sin(x) if self.use_sine else torch.cos(x)
        return nn.functional.mse_loss(x, target)


def test_a_recorded_graph_that_is_no_longer_what_the_module_does_is_refused():
    program = make(Switched)
    inputs = rows()
    program(*inputs)
    program.module.use_sine = False
    with pytest.raises(ExecutableError, match=r"call destroy\(\)"):
        program.profile(*inputs)
    program.destroy()
    assert any("cos" in row.operator for row in quick(program, inputs).rows)


def test_sums_are_those_of_parameters_that_a_gradient_reaches():
    program = make(Partly, SMALL.replace(gradient_accumulation=2))
    profile = quick(program, rows(32))
    sums = sum(total.nbytes for total in program.executor.sharing.sums)
    assert profile.liveness.always["gradient sums"] == sums
