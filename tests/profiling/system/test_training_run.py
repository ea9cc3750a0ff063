"""A real run, recorded: every event nests, and the parts of an epoch make up the epoch."""

from __future__ import annotations

import math

import pytest
import torch
from _recorded import check_nesting, events_in, follow
from torch import nn

from torchkiln import DataLoader, Options
from torchkiln.profiling import record, summarize
from torchkiln.training import Trainer

OPTIONS = Options(backend="capture", show_progress=False)
NUM_SAMPLES, BATCH_SIZE, NUM_EPOCHS = 64, 4, 2
NUM_STEPS = NUM_SAMPLES // BATCH_SIZE


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 1)

    def forward(self, x, y):
        return nn.functional.mse_loss(self.linear(x), y)


def train(folder, profile=None):
    """Train with a prefetching child, validation and checkpoints; return the weights."""
    torch.manual_seed(1)
    data = torch.utils.data.TensorDataset(torch.randn(NUM_SAMPLES, 4), torch.randn(NUM_SAMPLES, 1))
    loader = DataLoader(OPTIONS, data, batch_size=BATCH_SIZE, mode="async")
    held_out = DataLoader(OPTIONS, data, batch_size=8)
    net = Net()
    trainer = Trainer(
        net,
        loader,
        optimizer=torch.optim.Adam(net.parameters()),
        num_epochs=NUM_EPOCHS,
        options=OPTIONS,
        validation_loader=held_out,
        directory=folder,
        counted="molecules",
        progress="off",
    )
    if profile is None:
        trainer.fit()
    else:
        with record(profile):
            trainer.fit()
    return net.state_dict()


@pytest.fixture(scope="module")
def profile(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    train(folder / "run", folder / "profile")
    return folder / "profile"


def test_every_event_nests(profile):
    timeline = check_nesting(profile)
    assert [process.name for process in timeline.processes] == ["main", "prefetch"]
    assert all(process.has_ended for process in timeline.processes)


def test_all_parts_of_a_run_are_there_as_often_as_they_happen(profile):
    summary = summarize(profile)
    counts = {(row.process.name, row.channel, row.label): row.count for row in summary.rows}
    steps = NUM_EPOCHS * NUM_STEPS
    expected = {
        ("main", "training", "epoch"): NUM_EPOCHS,
        ("main", "training", "step"): steps,
        ("main", "program", "training step"): steps,
        ("main", "report", "step"): steps,
        ("main", "report", "epoch"): NUM_EPOCHS,
        ("main", "report", "write report"): 1,
        ("main", "validation", "validation"): NUM_EPOCHS,
        ("main", "program", "inference step"): NUM_EPOCHS * NUM_SAMPLES // 8,
        ("main", "checkpoint", "save"): NUM_EPOCHS,
        ("main", "compile", "training step"): 1,
        ("main", "compile", "validation"): 1,
        ("main", "compile", "capture"): 2,
    }
    assert {key: counts.get(key) for key in expected} == expected
    assert counts["prefetch", "data", "load batch"] >= steps
    assert summary.num_misnested == 0


def test_counters_are_told(profile):
    counters = {(row.process.name, row.name): row for row in summarize(profile).counters}
    assert counters["main", "molecules/s"].least > 0
    assert counters["main", "molecules/s"].count >= NUM_EPOCHS
    assert counters["prefetch", "batches waiting"].least >= 0
    assert counters["prefetch", "batches waiting"].most <= 3
    assert counters["prefetch", "memory (MB)"].most > 10


def test_the_parts_of_an_epoch_make_up_the_epoch(profile):
    summary = summarize(profile)
    assert [split.label for split in summary.epochs] == ["epoch 1", "epoch 2"]
    _, timed = follow(profile)
    for split in summary.epochs:
        assert split.total_us > 0
        assert min(split.step_us, split.wait_us, split.other_us, split.unmarked_us) >= 0
        parts = split.step_us + split.wait_us + split.other_us + split.unmarked_us
        assert math.isclose(parts, split.total_us)
        # Against the events themselves, without the order in which they were followed.
        (epoch,) = [one.stretch for one in timed if one.stretch.label == split.label]
        steps = [
            one.stretch.duration_us
            for one in timed
            if (one.stretch.channel, one.stretch.label) == ("training", "step")
            and epoch.start_us <= one.stretch.start_us <= epoch.end_us
        ]
        assert len(steps) == NUM_STEPS
        assert math.isclose(sum(steps), split.step_us)


def test_the_merged_file_says_the_same(profile):
    whole, merged = summarize(profile), summarize(profile / "trace.json")
    for name in ("rows", "counters", "epochs"):
        assert len(getattr(whole, name)) == len(getattr(merged, name))
    assert [row.total_us for row in whole.rows] == [row.total_us for row in merged.rows]


def test_recording_changes_no_number(profile, tmp_path):
    plain = train(tmp_path / "plain")
    recorded = train(tmp_path / "recorded", tmp_path / "profile")
    assert all(torch.equal(plain[name], recorded[name]) for name in plain)
    assert events_in(tmp_path / "profile")
