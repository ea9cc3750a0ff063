import contextlib
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from _tiny_training import make_dataset, make_job

from torchkiln import Options
from torchkiln.apps.schnet import _task
from torchkiln.apps.schnet._batches import arguments_of, count_real, time_dataloader
from torchkiln.apps.schnet._steps import EagerStep
from torchkiln.apps.schnet._trainer import train
from torchkiln.core import OptionsError
from torchkiln.datasets import element_baseline
from torchkiln.graphs import FixedSizeLoader
from torchkiln.profiling import load_profile
from torchkiln.report import QuietMonitor
from torchkiln.training._steps import ProgramStep

COMBINED = Options(
    backend="capture", device_iterations=2, gradient_accumulation=2, show_progress=False
)
# float32 sums in another order.
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def dataset():
    return make_dataset()


class Listener(QuietMonitor):
    def __init__(self):
        self.events, self.steps, self.epochs, self.messages = [], [], [], []

    def start(self, total_epochs, first_epoch):
        self.events.append(("start", total_epochs, first_epoch))

    def step(self, record):
        self.steps.append(record)

    def epoch(self, record):
        self.epochs.append(record)

    def message(self, text):
        self.messages.append(text)


@pytest.fixture(scope="module")
def combined_run(dataset):
    """A run that uses everything that can be combined, listened to."""
    listener = Listener()
    job = make_job(dataset, options=COMBINED, ema_decay=0.9, gamma=0.5)
    return train(job, listener), listener, job


def test_a_run_trains_and_says_how(combined_run, dataset):
    result, _, job = combined_run
    assert result.status == "finished"
    losses = [record.loss for record in result.epochs]
    assert len(losses) == 3
    assert losses[-1] < losses[0]
    assert [record.samples for record in result.epochs] == [len(dataset.splits["train"])] * 3
    assert result.compile_seconds > 0
    assert 0.3 < result.packing["nodes"] <= 1
    assert result.dataset["sizes"] == {"train": 48, "validation": 6, "test": 6}
    assert result.dataset["unit"] == "eV"
    assert result.model["parameters"] == sum(p.numel() for p in job.regression.parameters())
    json.dumps(result.settings)


def test_the_monitor_hears_every_call(combined_run, dataset):
    result, listener, job = combined_run
    assert listener.events == [("start", 3, 0)]
    assert listener.epochs == result.epochs
    for epoch in range(3):
        calls = [call for call in listener.steps if call.epoch == epoch]
        assert [call.step for call in calls] == list(range(calls[0].steps_in_epoch))
        samples = sum(call.samples for call in calls)
        assert samples == len(dataset.splits["train"])
        mean = sum(call.loss * call.samples for call in calls) / samples
        assert mean == pytest.approx(result.epochs[epoch].loss)
        assert sum(call.seconds for call in calls) == pytest.approx(result.epochs[epoch].seconds)
    updates = len(listener.steps) * job.options.device_iterations
    numbers = [number for number, _ in result.steps]
    assert numbers == sorted(set(numbers))
    assert numbers[-1] < updates
    assert len(numbers) > updates - 2 * len(result.epochs)


def test_the_learning_rate_decays_by_epoch(combined_run):
    result, _, job = combined_run
    assert [record.learning_rate for record in result.epochs] == [0.01, 0.005, 0.0025]
    assert job.optimizer.param_groups[0]["lr"] == 0.00125


def test_programs_and_plain_eager_pytorch_agree(dataset):
    """Same numbers with accumulation, iterations, decay by update, and the averaged weights."""
    results = []
    for eager in (False, True):
        job = make_job(dataset, options=COMBINED, eager=eager, ema_decay=0.8, gamma=0.99)
        job.regression.model.dropout.p = 0.0
        job = replace(job, scheduler_interval="update", num_epochs=2)
        results.append((train(job), job.optimizer.param_groups[0]["lr"]))
    (program, rate), (eager, eager_rate) = results
    updates = 2 * sum(job.train_loader.num_batches(epoch) for epoch in (0, 1))
    assert rate == eager_rate == pytest.approx(0.01 * 0.99**updates)
    assert [loss for _, loss in program.steps] == pytest.approx(
        [loss for _, loss in eager.steps], rel=TOLERANCE
    )
    assert program.validation.mae == pytest.approx(eager.validation.mae, rel=TOLERANCE)
    assert program.compile_seconds is not None
    assert eager.compile_seconds is None


@pytest.mark.parametrize("per_atom", [False, True])
def test_errors_are_physical(per_atom):
    """The error is that of a plain forward, undone by hand, molecule by molecule."""
    data = make_dataset(per_atom=per_atom)
    job = make_job(data, num_epochs=1)
    result = train(job)
    regression = job.regression.eval()
    predicted, true = [], []
    for index in data.splits["test"].tolist():
        batch = next(iter(FixedSizeLoader(data.store[[index]], batch_size=1)))
        with torch.no_grad():
            value = float(regression(**arguments_of(batch))[0][0])
        start, end = data.molecules.offsets[index : index + 2]
        value = value * data.transform.std + data.transform.mean
        value *= end - start if per_atom else 1
        value += sum(data.transform.references[z] for z in data.molecules.z[start:end].tolist())
        predicted.append(value)
        true.append(data.molecules.targets["energy"][index])
    assert result.test.predicted.dtype == np.float64
    assert result.test.predicted == pytest.approx(predicted, rel=TOLERANCE)
    assert result.test.true.tolist() == true
    error = np.abs(result.test.predicted - result.test.true).mean()
    assert result.test.mae == pytest.approx(error)
    known, tested = data.splits["train"], data.splits["test"]
    baseline = element_baseline(data.molecules, "energy", known, tested)
    assert result.test.baseline_mae == pytest.approx(baseline)
    error = np.abs(result.test.reference - result.test.true).mean()
    assert error == pytest.approx(baseline)


def test_the_average_is_what_validation_uses(dataset):
    plain = train(make_job(dataset, num_epochs=2))
    averaged = train(make_job(dataset, num_epochs=2, ema_decay=0.99))
    assert averaged.steps == plain.steps
    assert averaged.validation.mae != plain.validation.mae
    follows = train(make_job(dataset, num_epochs=2, ema_decay=0.0))
    assert follows.validation.mae == pytest.approx(plain.validation.mae)


def test_synthetic_data_repeats_one_batch(dataset):
    listener = Listener()
    result = train(make_job(dataset, synthetic_data=True, num_epochs=2), listener)
    assert result.status == "finished"
    assert len({call.samples for call in listener.steps}) == 1
    assert len(listener.steps) == sum(make_job(dataset).train_loader.num_batches(e) for e in (0, 1))


def test_a_run_without_validation(dataset):
    result = train(make_job(dataset, validation_loader=None, test_loader=None, num_epochs=1))
    assert result.validation is None
    assert result.test is None
    assert result.epochs[0].validation_mae is None


def test_a_plateau_lowers_the_learning_rate(dataset):
    job = make_job(dataset, num_epochs=4)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(job.optimizer, patience=0, threshold=1e9)
    result = train(replace(job, scheduler=plateau))
    rates = [record.learning_rate for record in result.epochs]
    assert rates == pytest.approx([1e-2, 1e-3, 1e-4, 1e-5])
    with pytest.raises(OptionsError, match="watches whole epochs"):
        replace(job, scheduler=plateau, scheduler_interval="update")


def test_a_loss_that_is_not_finite_stops_the_run(dataset):
    listener = Listener()
    result = train(make_job(dataset, options=COMBINED, learning_rate=1e30), listener)
    assert result.status == "failed"
    assert listener.messages == [result.note]
    assert "in epoch 1 of 3, step " in result.note
    assert "mini-batch " in result.note
    assert "lower the learning rate" in result.note
    assert all(math.isfinite(loss) for _, loss in result.steps)


@pytest.mark.parametrize("validates", [True, False])
def test_weights_spoiled_by_the_last_update_fail_the_run(dataset, validates):
    """No later loss shows it: an error or a weight that is not finite must."""
    job = make_job(dataset, options=COMBINED, num_epochs=1)
    if not validates:
        job = replace(job, validation_loader=None, test_loader=None)
    last = job.train_loader.num_batches(0) - 1

    class Spoiler(QuietMonitor):
        def step(self, record):
            if record.step == last:
                with torch.no_grad():
                    job.regression.model.head.weight.fill_(float("nan"))

    result = train(job, Spoiler())
    assert result.status == "failed"
    assert "model.head.weight" in result.note
    assert "lower the learning rate" in result.note
    assert len(result.epochs) == 1


def test_the_spoiled_molecule_is_named(dataset):
    """One target that is no number: the batch that holds it is named, and only that one."""
    job = make_job(dataset, options=COMBINED)
    wanted = int(dataset.splits["train"][17])

    class Spoiled:
        """Stands before the loader and spoils one target on its way."""

        def __init__(self, loader):
            self._loader = loader

        def __getattr__(self, name):
            return getattr(self._loader, name)

        def __iter__(self):
            for batch in self._loader:
                batch.y[(batch.index == wanted).reshape(-1) & batch.graph_mask] = float("nan")
                yield batch

    result = train(replace(job, train_loader=Spoiled(job.train_loader)))
    assert result.status == "failed"
    assert f"{wanted} (random_{wanted})" in result.note
    assert "the loss is nan" in result.note
    named = result.note.split("molecules ")[1].split(":")[0].split(", ")
    assert len(named) < 10
    loader = job.train_loader
    loader.set_epoch(0)
    assert any(
        {int(name.split()[0]) for name in named}
        == set(dataset.splits["train"][loader.plan[pack]].tolist())
        for pack in range(len(loader.plan))
    )


def test_profiles_are_written(dataset, tmp_path, capfd):
    options = Options(backend="capture", show_progress=False)
    job = make_job(dataset, options=options, num_epochs=2, profile_dir=tmp_path / "profile")
    assert train(job).status == "finished"
    profile = load_profile(tmp_path / "profile" / "training")
    assert profile.training
    assert profile.times.steps_measured >= 5
    assert {"forward", "backward", "update"} == {row.phase for row in profile.rows}
    assert any("_tiny_training.py" in line.file for line in profile.lines)
    assert (tmp_path / "profile" / "training" / "report.html").stat().st_size > 10_000
    assert "profile of training step" in capfd.readouterr().err


def test_plain_eager_steps_are_profiled_by_torch(dataset, tmp_path, capfd):
    listener = Listener()
    job = make_job(dataset, num_epochs=1, profile_dir=tmp_path / "profile", eager=True)
    assert train(job, listener).status == "finished"
    trace = json.loads((tmp_path / "profile" / "training_step.trace.json").read_text())
    assert any(event.get("name") == "training step" for event in trace["traceEvents"])
    assert "aten::" in (tmp_path / "profile" / "training_step.txt").read_text()
    assert any("profile of one step" in message for message in listener.messages)
    assert capfd.readouterr().err == ""  # the profiler's library would write over bars


def test_time_of_reports_is_no_training(dataset, tmp_path, monkeypatch):
    """Writing a report takes longer than the step in which it is written."""
    monkeypatch.setattr(_task, "profile_call", lambda call, directory: (call(), 1e6, []))
    result = train(make_job(dataset, num_epochs=1, profile_dir=tmp_path, eager=True))
    assert result.epochs[0].seconds == pytest.approx(1e6, rel=1e-3)


def test_the_loader_alone_is_timed(dataset):
    loader = make_job(dataset, options=COMBINED).train_loader
    timings = time_dataloader(loader, num_epochs=2)
    assert [timing.molecules for timing in timings] == [48, 48]
    assert [timing.batches for timing in timings] == [loader.num_batches(e) for e in (0, 1)]
    assert all(timing.molecules_per_s > 0 and timing.batches_per_s > 0 for timing in timings)


def test_workers_change_nothing(dataset):
    plain = train(make_job(dataset, num_epochs=2))
    workers = train(make_job(dataset, num_epochs=2, num_workers=1))
    assert workers.steps == plain.steps


@pytest.mark.parametrize("make", [ProgramStep, EagerStep])
def test_precision_reaches_the_step(dataset, make, monkeypatch):
    # Some processors have 16-bit arithmetic, and the warning comes once in a process.
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)
    monkeypatch.setattr("torchkiln.runtime.execute._precision._warned", set())
    options = Options(backend="eager", precision="bfloat16", show_progress=False)
    job = make_job(dataset, options=options.replace(precision=None))
    job.regression.model.dropout.p = 0.0
    batch = next(iter(job.train_loader))
    exact = job.regression(**arguments_of(batch))[1].item()
    with (
        pytest.warns(UserWarning, match="bfloat16")
        if make is ProgramStep
        else contextlib.nullcontext()
    ):
        step = make(job.regression, options, job.optimizer)
        loss = step(arguments_of(batch), count_real(batch, 1), lambda: False).losses
    assert loss.item() != exact
    assert loss.item() == pytest.approx(exact, rel=0.05)


def test_refused_values(dataset):
    with pytest.raises(OptionsError, match=r"ema_decay must be .* got 1\.0"):
        make_job(dataset, ema_decay=1.0)
    with pytest.raises(OptionsError, match="num_epochs must not be negative"):
        make_job(dataset, num_epochs=-1)
    with pytest.raises(OptionsError, match="'epoch' or 'update', got 'step'"):
        make_job(dataset, scheduler_interval="step")
    other = make_job(dataset, gamma=0.9).scheduler
    with pytest.raises(OptionsError, match="belong to the optimizer"):
        make_job(dataset, scheduler=other)
