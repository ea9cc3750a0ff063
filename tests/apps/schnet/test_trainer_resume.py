import json
import os
import pty
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from _tiny_training import (
    CAPTURE,
    SIGNAL_AT,
    SignalMonitor,
    facts_of,
    make_dataset,
    make_full_job,
    make_job,
)
from torch.optim.lr_scheduler import CosineAnnealingLR, MultiStepLR

from torchkiln import CheckpointError, CheckpointStore, Options
from torchkiln.apps.schnet._job import make_checkpoint_plan
from torchkiln.apps.schnet._trainer import train
from torchkiln.core import OptionsError
from torchkiln.data import LoaderError
from torchkiln.report import QuietMonitor

SCRIPT = Path(__file__).with_name("_tiny_training.py")
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def one_thread():
    """Children have one thread; the same number gives the same bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def dataset():
    return make_dataset()


class Messages(QuietMonitor):
    def __init__(self):
        self.texts = []

    def message(self, text):
        self.texts.append(text)


def read_terminal(descriptor):
    """Return everything that was written to a terminal, until its last writer is gone."""
    chunks = []
    while True:
        try:
            chunk = os.read(descriptor, 4096)
        except OSError:  # how Linux says that nobody holds the other side any more
            chunk = b""
        if not chunk:
            os.close(descriptor)
            return b"".join(chunks).decode()
        chunks.append(chunk)


def test_killed_and_interrupted_runs_resume_with_the_same_bits(tmp_path):
    """A process on a real terminal: Ctrl-C in its first run, SIGKILL in its second."""
    terminal, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    child = subprocess.Popen(
        [sys.executable, str(SCRIPT), str(tmp_path)], stderr=theirs, env=environment
    )
    os.close(theirs)
    screen = read_terminal(terminal)
    assert child.wait(60) == -signal.SIGKILL, screen
    assert (tmp_path / "interrupted.status").read_text() == "interrupted"
    check_screen(screen, tmp_path / "interrupted" / "tiny")

    expected = train(make_full_job(None))
    first_epoch = make_full_job(None).train_loader.num_batches(0)
    for name, done in (("killed", 0), ("interrupted", SIGNAL_AT + 1 - first_epoch)):
        facts = CheckpointStore(tmp_path / name / "tiny").load().facts
        assert facts["loader"]["epoch"] == facts["epoch"] == 1
        assert facts["loader"]["done"] == done
        resumed = train(make_full_job(tmp_path / name, resume=True))
        assert resumed.status == "finished"
        assert json.dumps(facts_of(resumed)) == json.dumps(facts_of(expected))


def check_screen(screen, directory):
    """What an interrupt leaves on a terminal: said what was done, bars closed, cursor visible."""
    flat = " ".join(screen.split())
    assert "stopping after this step" in flat
    assert f"interrupted in epoch 2 of 3 and saved in {directory}" in flat
    assert "--resume true --model_name tiny" in flat
    assert screen.count("\x1b[?25l") == screen.count("\x1b[?25h")
    assert "Traceback" not in screen


def interrupt(dataset, root, at, **changes):
    """Return the result of a run that gets Ctrl-C at a step."""
    return train(make_job(dataset, root=root, **changes), SignalMonitor(signal.SIGINT, at))


@pytest.mark.parametrize("where", ["first step", "middle", "end of epoch"])
def test_interrupts_everywhere_change_nothing(dataset, tmp_path, where):
    """Options that seed torch when a program is made must not begin the random numbers anew."""
    seeded = Options(backend="eager", show_progress=False, random_seed=11)
    expected = train(make_job(dataset, num_epochs=2, options=seeded))
    num_batches = make_job(dataset).train_loader.num_batches(0)
    at = {"first step": 0, "middle": num_batches + 3, "end of epoch": num_batches - 1}[where]
    result = interrupt(dataset, tmp_path, at, num_epochs=2, options=seeded)
    assert result.status == "interrupted"
    assert len(result.steps) == at + 1
    assert result.steps == expected.steps[: at + 1]
    assert f"saved in {tmp_path / 'tiny'}" in result.note
    monitor = Messages()
    job = make_job(dataset, root=tmp_path, resume=True, num_epochs=2, options=seeded)
    assert facts_of(train(job, monitor)) == facts_of(expected)
    assert monitor.texts[0].startswith(f"continuing {tmp_path / 'tiny'} in epoch ")


def test_handlers_are_put_back(dataset, tmp_path):
    before = [signal.getsignal(kind) for kind in (signal.SIGINT, signal.SIGTERM)]
    assert interrupt(dataset, None, 2).note.endswith("(--checkpoint true saves a run)")
    assert [signal.getsignal(kind) for kind in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_second_interrupt_stops_at_once(dataset, tmp_path):
    class Twice(QuietMonitor):
        def step(self, record):
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        train(make_job(dataset, root=tmp_path, num_workers=1), Twice())
    assert signal.getsignal(signal.SIGINT) is before
    assert not CheckpointStore(tmp_path / "tiny").exists()
    train(make_job(dataset, root=tmp_path, num_epochs=1))  # the claim is given up


def test_sigterm_saves_too(dataset, tmp_path):
    result = train(make_job(dataset, root=tmp_path), SignalMonitor(signal.SIGTERM, 2))
    assert result.status == "interrupted"
    assert CheckpointStore(tmp_path / "tiny").exists()


def test_a_second_interrupt_while_saving_keeps_the_old_checkpoint(dataset, tmp_path, monkeypatch):
    num_batches = make_job(dataset).train_loader.num_batches(0)
    job = make_job(dataset, root=tmp_path)
    replace_file = os.replace

    class Impatient(SignalMonitor):
        def step(self, record):
            super().step(record)
            if self._count == num_batches + 2:
                monkeypatch.setattr(os, "replace", interrupted_replace)

    def interrupted_replace(source, target):
        os.kill(os.getpid(), signal.SIGINT)
        replace_file(source, target)

    result = train(job, Impatient(signal.SIGINT, num_batches + 1))
    monkeypatch.undo()
    assert result.status == "interrupted"
    assert "again while saving; an older checkpoint is kept" in result.note
    assert CheckpointStore(tmp_path / "tiny").load().facts["epoch"] == 1
    resumed = train(make_job(dataset, root=tmp_path, resume=True))
    assert facts_of(resumed) == facts_of(train(make_job(dataset)))


def test_a_damaged_checkpoint_falls_back_to_the_same_bits(dataset, tmp_path):
    train(make_job(dataset, root=tmp_path, num_epochs=2))
    newest = sorted((tmp_path / "tiny").glob("*.safetensors"))[-1]
    newest.write_bytes(newest.read_bytes()[:-100])
    with pytest.warns(UserWarning, match="the one before it is used"):
        resumed = train(make_job(dataset, root=tmp_path, resume=True))
    assert facts_of(resumed) == facts_of(train(make_job(dataset)))


def test_a_finished_run_goes_on_for_more_epochs(dataset, tmp_path):
    train(make_job(dataset, root=tmp_path, num_epochs=1, every_epochs=10))
    again = train(make_job(dataset, root=tmp_path, num_epochs=1, resume=True))
    assert again.status == "finished"
    assert again.validation is not None
    more = train(make_job(dataset, root=tmp_path, num_epochs=3, resume=True))
    assert facts_of(more) == facts_of(train(make_job(dataset)))


def test_synthetic_data_resumes(dataset, tmp_path):
    changes = {"synthetic_data": True, "num_epochs": 2}
    assert interrupt(dataset, tmp_path, 4, **changes).status == "interrupted"
    resumed = train(make_job(dataset, root=tmp_path, resume=True, **changes))
    assert facts_of(resumed) == facts_of(train(make_job(dataset, **changes)))


def test_checkpoints_are_neither_overwritten_nor_invented(dataset, tmp_path):
    with pytest.raises(CheckpointError, match=r"no checkpoint of 'tiny' .* none at all"):
        train(make_job(dataset, root=tmp_path, resume=True))
    train(make_job(dataset, root=tmp_path, num_epochs=1))
    before = {path: path.read_bytes() for path in (tmp_path / "tiny").iterdir()}
    with pytest.raises(CheckpointError, match=r"--resume true, or choose another --model_name"):
        train(make_job(dataset, root=tmp_path, num_epochs=1))
    assert {path: path.read_bytes() for path in (tmp_path / "tiny").iterdir()} == before
    other = make_checkpoint_plan(root=tmp_path, model_name="other", resume=True)
    with pytest.raises(CheckpointError, match="there are tiny; check --model_name"):
        other.check()


@pytest.mark.parametrize("name", ["", "a/b", "..", "/tmp"])
def test_names_that_are_no_directories(tmp_path, name):
    with pytest.raises(OptionsError, match="cannot be the name of a directory"):
        make_checkpoint_plan(root=tmp_path, model_name=name)
    with pytest.raises(OptionsError, match="checkpoint_epochs must be at least 1, got 0"):
        make_checkpoint_plan(root=tmp_path, model_name="a", every_epochs=0)


@pytest.fixture(scope="module")
def saved(dataset, tmp_path_factory):
    root = tmp_path_factory.mktemp("saved")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    train(make_job(dataset, root=root, num_epochs=1, gamma=0.9, fixed={"loss": "mse"}))
    torch.set_num_threads(before)
    return root


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"learning_rate": 0.5}, r"optimizer\.lr was 0\.01 and is 0\.5"),
        ({"gamma": 0.5}, r"scheduler\.gamma was 0\.9 and is 0\.5"),
        ({"gamma": None}, r"scheduler\.kind was 'ExponentialLR' and is None"),
        ({"ema_decay": 0.9}, r"ema_decay was None and is 0\.9"),
        ({"fixed": {"loss": "mae"}}, r"loss was 'mse' and is 'mae'"),
        ({"model_arguments": {"width": 9}}, r"model\.width was 8 and is 9"),
        ({"synthetic_data": True}, r"synthetic_data was False and is True"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_other_settings_are_named(dataset, saved, changes, said):
    arguments = {"gamma": 0.9, "fixed": {"loss": "mse"}, **changes}
    with pytest.raises(CheckpointError, match=said):
        train(make_job(dataset, root=saved, resume=True, **arguments))


def test_moved_files_and_other_settings_that_do_not_matter(dataset, saved, tmp_path):
    moved = replace(dataset, molecules=replace(dataset.molecules, source="elsewhere"))
    shutil.copytree(saved / "tiny", tmp_path / "tiny")
    job = make_job(
        moved,
        root=tmp_path,
        resume=True,
        gamma=0.9,
        fixed={"loss": "mse"},
        options=CAPTURE,
        num_workers=1,
        settings={"output_dir": "elsewhere"},
        num_epochs=2,
    )
    assert [record.epoch for record in train(job).epochs] == [0, 1]


def test_other_molecules_are_noticed(saved):
    other = make_dataset(seed=1)
    job = make_job(other, root=saved, resume=True, gamma=0.9, fixed={"loss": "mse"})
    with pytest.raises((CheckpointError, LoaderError), match=r"other settings|batches are others"):
        train(job)


def test_another_number_of_threads_is_said(dataset, saved):
    torch.set_num_threads(2)
    job = make_job(dataset, root=saved, resume=True, gamma=0.9, fixed={"loss": "mse"}, num_epochs=1)
    with pytest.warns(UserWarning, match="made with 1 threads, now there are 2"):
        train(job)


def test_what_a_checkpoint_holds(dataset, tmp_path):
    job = make_job(dataset, root=tmp_path, num_epochs=1, ema_decay=0.9)
    result = train(job)
    tensors, facts = CheckpointStore(tmp_path / "tiny").load()
    weights = job.regression.model.state_dict()
    assert {n for n in tensors if n.startswith("model/")} == {f"model/{n}" for n in weights}
    assert {n for n in tensors if n.startswith("average/")} == {f"average/{n}" for n in weights}
    assert all(torch.equal(tensors[f"model/{name}"], value) for name, value in weights.items())
    assert facts["model"] == {"width": 8}
    assert facts["transform"] == dataset.transform.to_dict()
    assert facts["dataset"]["elements"] == [1, 6, 7, 8]
    assert facts["dataset"]["cutoff_angstrom"] == 3.0
    assert facts["dataset"]["k"] is None
    assert facts["epoch"] == 1
    assert facts["step"] == len(result.steps)
    assert facts["settings"] == {"bench": {"learning_rate": 0.01}}


def test_epochs_between_checkpoints(dataset, tmp_path):
    seen = []

    class Watch(QuietMonitor):
        def epoch(self, record):
            seen.append(CheckpointStore(tmp_path / "tiny").exists())

    train(make_job(dataset, root=tmp_path, num_epochs=4, every_epochs=2), Watch())
    assert seen == [False, False, True, True]  # told before saving
    assert CheckpointStore(tmp_path / "tiny").load().facts["epoch"] == 4


def test_a_full_disk_does_not_end_the_training_but_is_said(dataset, tmp_path, monkeypatch):
    save = CheckpointStore.save
    calls = []

    def full(self, tensors, facts):
        calls.append(facts["epoch"])
        if facts["epoch"] in broken:
            raise CheckpointError("the checkpoint could not be written (No space left on device)")
        return save(self, tensors, facts)

    monkeypatch.setattr(CheckpointStore, "save", full)
    broken, monitor = {2}, Messages()
    result = train(make_job(dataset, root=tmp_path), monitor)
    assert result.status == "finished"
    assert calls == [1, 2, 3]
    assert monitor.texts == [
        "training goes on, but the checkpoint could not be written (No space left on device)"
    ]
    broken = {3}
    result = train(make_job(dataset, root=tmp_path / "second"))
    assert result.status == "failed"
    assert "No space left" in result.note
    assert result.validation is not None
    assert CheckpointStore(tmp_path / "second" / "tiny").load().facts["epoch"] == 2


def test_not_finite_keeps_the_last_good_checkpoint(dataset, tmp_path):
    job = make_job(dataset, root=tmp_path)
    spoil = job.train_loader.num_batches(0) + 2

    class Spoiler(QuietMonitor):
        count = 0

        def step(self, record):
            self.count += 1
            if self.count == spoil:
                with torch.no_grad():
                    job.regression.model.head.weight.fill_(float("nan"))

    result = train(job, Spoiler())
    assert result.status == "failed"
    assert f"the last good checkpoint is kept in {tmp_path / 'tiny'}" in result.note
    assert len(result.epochs) == 2
    assert result.epochs[1].samples < result.epochs[0].samples
    resumed = train(make_job(dataset, root=tmp_path, resume=True))
    assert facts_of(resumed) == facts_of(train(make_job(dataset)))


def test_weights_that_are_not_finite_are_not_saved(dataset, tmp_path):
    job = make_job(dataset, root=tmp_path, num_epochs=2)

    class Spoiler(QuietMonitor):
        def epoch(self, record):
            if record.epoch == 1:
                with torch.no_grad():
                    job.regression.model.head.weight.fill_(float("nan"))

    result = train(job, Spoiler())
    assert result.status == "failed"
    assert "'head.weight' holds NaN or infinity and is not saved" in result.note
    assert CheckpointStore(tmp_path / "tiny").load().facts["epoch"] == 1


def test_schedules_that_can_be_kept(dataset, tmp_path):
    job = make_job(dataset, root=tmp_path)
    with pytest.raises(OptionsError, match="the state of MultiStepLR cannot be kept"):
        train(replace(job, scheduler=MultiStepLR(job.optimizer, [1, 2])))

    def cosine(length, **arguments):
        job = make_job(dataset, **arguments)
        schedule = CosineAnnealingLR(job.optimizer, length)
        return replace(job, scheduler=schedule, scheduler_interval="update")

    train(cosine(90, root=tmp_path / "cosine", num_epochs=1))
    resumed = train(cosine(90, root=tmp_path / "cosine", resume=True))
    assert facts_of(resumed) == facts_of(train(cosine(90)))
    with pytest.raises(CheckpointError, match=r"scheduler\.T_max was 90 and is 80"):
        train(cosine(80, root=tmp_path / "cosine", resume=True))
