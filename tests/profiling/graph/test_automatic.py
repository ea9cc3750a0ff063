"""`Options(profile_dir=...)`: a report from the calls that a program makes anyway."""

from __future__ import annotations

import gc
import subprocess
import sys
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import _profiled_models as models
import pytest
import torch

from torchkiln import Options, inference_model, training_model
from torchkiln.profiling import load_profile, profile_program
from torchkiln.profiling.graph import _automatic, _liveness
from torchkiln.profiling.graph._recorder import CallRecorder


def rows():
    return tuple(torch.randn(16, 8) for _ in range(2))


@pytest.fixture
def options(tmp_path):
    return Options(backend="capture", show_progress=False, profile_dir=tmp_path / "profiles")


def make(options, name="training step"):
    torch.manual_seed(3)
    module = models.Chain()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    return training_model(module, options, optimizer, name=name)


def folders(options):
    if not options.profile_dir.exists():
        return []
    return sorted(path.name for path in options.profile_dir.iterdir())


def test_the_report_is_there_after_enough_calls(options, monkeypatch):
    monkeypatch.setattr(_automatic, "_CALLS", 4)
    program, inputs = make(options), rows()
    for _ in range(_automatic._WARM_CALLS + 3):
        program(*inputs)
        assert folders(options) == []
    program(*inputs)
    assert folders(options) == ["training"]
    assert (options.profile_dir / "training" / "report.html").exists()
    profile = load_profile(options.profile_dir)
    assert profile.times.steps_measured == 4
    assert profile.times.waiting_us is not None
    assert sum(row.us for row in profile.rows) == pytest.approx(profile.times.executable_us)
    written = (options.profile_dir / "training" / "profile.json").stat().st_mtime_ns
    for _ in range(10):
        program(*inputs)
    program.destroy()
    after = (options.profile_dir / "training" / "profile.json").stat().st_mtime_ns
    assert after == written, "one report"


def test_time_between_calls_is_told_from_computing_between_calls():
    def between(prepare):
        program, inputs, recorder = make(Options(backend="capture")), rows(), CallRecorder()
        program(*inputs)
        with program.watched(recorder):
            for _ in range(2):
                prepare(time.thread_time() + 0.05)
                program(*inputs)
        return recorder.calls[-1]

    def compute(until):
        while time.thread_time() < until:
            pass

    asleep, awake = between(lambda until: time.sleep(0.05)), between(compute)
    assert asleep.between_ns >= 5e7
    assert asleep.between_computing_ns < 2.5e7
    assert awake.between_ns >= awake.between_computing_ns * 0.99 >= 4.9e7


def test_a_program_that_is_destroyed_early_has_its_report(options):
    program, inputs = make(options), rows()
    for _ in range(3):
        program(*inputs)
    assert folders(options) == []
    program.destroy()
    assert load_profile(options.profile_dir).times.steps_measured == 1


def test_a_program_that_never_ran_has_none(options):
    program = make(options)
    program.compile(*rows())
    program.destroy()
    assert folders(options) == []


def test_each_program_has_a_folder(options):
    programs = [
        make(options),
        make(options, name="second run: a/b"),
        inference_model(models.Chain().eval(), options),
    ]
    for program in programs:
        program(*rows())
        program.destroy()
    assert folders(options) == ["inference", "second_run__a_b", "training"]


def test_programs_of_one_name_do_not_write_over_each_other(options):
    first, second = make(options), make(options)
    for _ in range(4):
        first(*rows())
    second(*rows())
    first.destroy()
    second.destroy()
    second(*rows())
    second.destroy()
    assert folders(options) == ["training", "training-2", "training-3"]
    assert load_profile(options.profile_dir / "training").times.steps_measured == 2


def test_ranks_have_folders_of_their_own(options):
    program = make(options.replace(num_processes=2, process_id=1, sync_gradients=False))
    program(*rows())
    program.destroy()
    assert folders(options) == ["training-rank1"]


def test_a_program_that_nobody_holds_any_more_has_its_report(options):
    program = make(options)
    for _ in range(4):
        program(*rows())
    watched = weakref.ref(program)
    del program
    gc.collect()
    assert watched() is None
    assert load_profile(options.profile_dir).times.steps_measured == 2


def test_calls_from_several_threads_are_measured_one_by_one(options, monkeypatch):
    monkeypatch.setattr(_automatic, "_CALLS", 30)
    program = make(options)
    inputs = rows()
    program(*inputs)
    with ThreadPoolExecutor(3) as pool:
        for _ in pool.map(lambda _: program(*inputs), range(60)):
            pass
    profile = load_profile(options.profile_dir)
    assert profile.times.steps_measured == 30
    assert sum(row.us for row in profile.rows) == pytest.approx(profile.times.executable_us)


def test_a_profile_between_two_calls_is_no_time_of_the_loop(options):
    program, inputs = make(options), rows()
    for _ in range(2):
        program(*inputs)
    profile_program(program, inputs, {}, seconds=0.0)
    for _ in range(2):
        program(*inputs)
    before, *between = [call.between_ns for call in program._watcher._recorder.calls]
    program.destroy()
    assert before is None, "nothing lies before the first call"
    assert [time is None for time in between] == [False, True, False]


def test_a_folder_that_cannot_be_written_is_not_announced(options, capfd):
    options.profile_dir.write_text("a file")
    program = make(options.replace(show_progress=True))
    program(*rows())
    with pytest.warns(UserWarning, match="choose another profile_dir"):
        program.destroy()
    told = capfd.readouterr()
    assert "report.html" not in told.out + told.err


def test_losses_are_those_without_a_profile(options):
    inputs = rows()
    plain, watched = make(options.replace(profile_dir=None)), make(options)
    expected = [plain(*inputs) for _ in range(5)]
    losses = [watched(*inputs) for _ in range(5)]
    assert torch.equal(torch.stack(losses), torch.stack(expected))
    watched.destroy()


def test_plain_python_is_warned_of_and_runs(options):
    program = make(options.replace(backend="eager"))
    with pytest.warns(UserWarning, match=r"there will be no profile .* plain Python"):
        program(*rows())
    program(*rows())
    program.destroy()
    assert folders(options) == []


class Once(models.Chain):
    """Can be recorded once."""

    is_recorded = False

    def __init__(self, error):
        super().__init__()
        self.error = error

    def forward(self, x, target):
        if self.is_recorded:
            raise self.error
        self.is_recorded = True
        return super().forward(x, target)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError("only once"), "ValueError: only once"),
        (AssertionError(), "AssertionError: "),
        (KeyError("first"), "KeyError: 'first'"),
    ],
)
def test_what_cannot_be_recorded_again_is_warned_of_and_runs(options, error, told):
    module = Once(error)
    program = training_model(module, options, torch.optim.SGD(module.parameters(), lr=0.1))
    with pytest.warns(UserWarning, match=f"there will be no profile .* raised {told}"):
        program(*rows())
    program(*rows())
    program.destroy()
    assert folders(options) == []


def test_an_error_of_the_profile_itself_is_not_taken_for_one_of_forward(options, monkeypatch):
    def fail(*args):
        raise ZeroDivisionError

    monkeypatch.setattr(_automatic, "make_profile", fail)
    with pytest.raises(ZeroDivisionError):
        make(options).compile(*rows())


def test_a_step_larger_than_the_memory_has_its_report_before_it_runs(options, monkeypatch):
    monkeypatch.setattr(_liveness, "available_bytes", lambda: 1000)
    program, inputs = make(options), rows()
    with pytest.warns(UserWarning, match=r"and only .* are free; .*report\.html tells"):
        program.compile(*inputs)
    profile = load_profile(options.profile_dir)
    assert profile.times is None
    assert not profile.liveness.fits
    assert profile.liveness.advice
    assert profile.insights[0].kind == "memory"
    program.destroy()


SCRIPT = """
import sys
import torch
from torch import nn
from torchkiln import Options, training_model

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return nn.functional.mse_loss(self.linear(x), x)

module = Model()
options = Options(backend="capture", show_progress=False, profile_dir=sys.argv[1])
program = training_model(module, options, torch.optim.SGD(module.parameters(), lr=0.1))
for _ in range(4):
    program(torch.ones(2, 4))
"""


def test_a_process_that_ends_early_leaves_a_report(tmp_path):
    script = tmp_path / "short.py"
    script.write_text(SCRIPT)
    folder = tmp_path / "profiles"
    subprocess.run([sys.executable, script, folder], check=True, timeout=120)
    profile = load_profile(folder)
    assert profile.model == "Model"
    assert profile.times.steps_measured == 2
    assert any(
        line.code == "return nn.functional.mse_loss(self.linear(x), x)" for line in profile.lines
    )
    assert (folder / "training" / "report.html").exists()
