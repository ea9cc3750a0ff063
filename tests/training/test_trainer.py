"""`Trainer` on modules and loaders of every kind."""

import itertools
import os
import signal

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset
from torch_geometric.data import Data

from torchkiln import CheckpointError, CheckpointStore, DataLoader, Options
from torchkiln.core import NonFiniteError, OptionsError
from torchkiln.data import LoaderError
from torchkiln.graphs import FixedSizeLoader
from torchkiln.report import load_result
from torchkiln.training import ExitCode, QuietMonitor, Trainer, WeightAverage, exit_code

EAGER = Options(backend="eager", show_progress=False)
NUM_BATCHES = 8
STOP_AT = 11  # in the middle of the second epoch


class Regression(nn.Module):
    """Has dropout and a batch norm, so that random numbers and buffers count, too."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 1)
        )

    def forward(self, x, y):
        prediction = self.net(x)
        return {"prediction": prediction, "loss": nn.functional.mse_loss(prediction, y)}


class GraphRegression(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, batch):
        sums = batch.x.new_zeros(len(batch.graph_mask), 1)
        prediction = sums.index_add(0, batch.batch, self.layer(batch.x))
        error = torch.where(batch.graph_mask[:, None], prediction - 1.0, 0.0)
        return nn.functional.mse_loss(error, torch.zeros_like(error))


def make_data():
    x = torch.randn(64, 3, generator=torch.Generator().manual_seed(1))
    return TensorDataset(x, x.sum(dim=1, keepdim=True))


class AsDicts:
    """An ordinary class of the user's: a new order in each epoch, from torch's generator."""

    def __len__(self):
        return NUM_BATCHES

    def __iter__(self):
        x, y = make_data().tensors
        for rows in torch.randperm(64).split(8):
            yield {"x": x[rows], "y": y[rows]}


class Augmented(AsDicts):
    """Draws while training draws, too."""

    def __iter__(self):
        for batch in super().__iter__():
            yield {**batch, "x": batch["x"] + 0.1 * torch.randn(8, 3)}


def make_graphs():
    edges = torch.tensor([[0], [1]])
    graphs = [Data(x=torch.full((2, 2), i / 10), edge_index=edges) for i in range(32)]
    return FixedSizeLoader(graphs, batch_size=4, options=EAGER, shuffle=True, seed=3)


LOADERS = {
    "global generator": lambda: DataLoader(EAGER, make_data(), 8, shuffle=True),
    "own generator": lambda: torch.utils.data.DataLoader(
        make_data(), 8, shuffle=True, generator=torch.Generator().manual_seed(2)
    ),
    "workers": lambda: DataLoader(EAGER, make_data(), 8, shuffle=True, num_workers=1),
    "in order": lambda: DataLoader(EAGER, make_data(), 8, mode="async"),
    "list": lambda: list(DataLoader(EAGER, make_data(), 8)),
    "own class": AsDicts,
    "augmented": Augmented,
    "graphs": make_graphs,
}


def make_trainer(directory=None, kind="global generator", **changes):
    torch.manual_seed(0)
    module = GraphRegression() if kind == "graphs" else Regression()
    optimizer = torch.optim.Adam(module.parameters(), lr=changes.pop("lr", 0.01))
    average = WeightAverage(module, changes.pop("decay", 0.9))
    gamma = changes.pop("gamma", 0.9)
    return Trainer(
        module,
        changes.pop("loader", None) or LOADERS[kind](),
        **{
            "optimizer": optimizer,
            "num_epochs": 3,
            "options": EAGER,
            "schedule": torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma),
            "average": average,
            "directory": directory,
            "progress": "none",
            **changes,
        },
    )


class Stop(QuietMonitor):
    """Presses Ctrl-C at one step, counted from 0."""

    def __init__(self, at):
        self.at, self.steps, self.texts = at, [], []

    def step(self, record):
        if len(self.steps) == self.at:
            os.kill(os.getpid(), signal.SIGINT)
        self.steps.append(record)

    def message(self, text):
        self.texts.append(text)


def require_same(trainer, result, expected_trainer, expected):
    assert result.steps == expected.steps
    assert [e.loss for e in result.epochs] == [e.loss for e in expected.epochs]
    for mine, theirs in (
        (trainer.module, expected_trainer.module),
        (trainer.average.module, expected_trainer.average.module),
    ):
        for name, tensor in theirs.state_dict().items():
            assert torch.equal(mine.state_dict()[name], tensor), name


PLACES = {"middle": STOP_AT, "end of epoch": NUM_BATCHES - 1}
# What goes on differently in each: workers, packs, random numbers of the loader and of the user.
EVERY_TIME = [
    ("workers", "middle"),
    ("graphs", "middle"),
    ("own class", "middle"),
    ("augmented", "end of epoch"),
    ("own generator", "end of epoch"),
]


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        pytest.param(*case, marks=() if case in EVERY_TIME else pytest.mark.slow)
        for case in itertools.product(LOADERS, PLACES)
    ],
)
def test_an_interrupted_run_goes_on_with_the_same_bits(tmp_path, kind, place):
    at = PLACES[place]
    expected_trainer = make_trainer(tmp_path / "straight", kind)
    expected = expected_trainer.fit()
    assert exit_code(expected) == ExitCode.OK
    stop = Stop(at)
    stopped = make_trainer(tmp_path / "run", kind, monitors=[stop]).fit()
    assert exit_code(stopped) == ExitCode.INTERRUPTED
    assert stopped.steps == expected.steps[: at + 1]
    assert "go on with the same program" in stopped.note
    assert stop.texts == [stopped.note]
    torch.manual_seed(99)
    trainer = make_trainer(tmp_path / "run", kind)
    require_same(trainer, trainer.fit(), expected_trainer, expected)


def test_workers_of_validation_do_not_disturb_training(tmp_path):
    def make(folder, **changes):
        held_out = DataLoader(EAGER, make_data(), 16, num_workers=1)
        return make_trainer(tmp_path / folder, validation_loader=held_out, **changes)

    expected_trainer = make("straight")
    expected = expected_trainer.fit()
    make("run", monitors=[Stop(STOP_AT)]).fit()
    trainer = make("run")
    require_same(trainer, trainer.fit(), expected_trainer, expected)


class Shorter(AsDicts):
    """Has a batch less than it says."""

    def __iter__(self):
        return itertools.islice(super().__iter__(), NUM_BATCHES - 1)


def test_a_loader_may_be_shorter_than_its_length(tmp_path):
    expected_trainer = make_trainer(tmp_path / "straight", loader=Shorter())
    expected = expected_trainer.fit()
    make_trainer(tmp_path / "run", loader=Shorter(), monitors=[Stop(NUM_BATCHES - 2)]).fit()
    trainer = make_trainer(tmp_path / "run", loader=Shorter())
    require_same(trainer, trainer.fit(), expected_trainer, expected)


def test_checkpoints_within_epochs_are_exact_too(tmp_path):
    expected_trainer = make_trainer(tmp_path / "straight")
    expected = expected_trainer.fit()

    class Crash(Stop):
        def step(self, record):
            if record.epoch == 1 and record.step == 6:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_trainer(tmp_path / "run", save_every_steps=3, monitors=[Crash(0)]).fit()
    assert CheckpointStore(tmp_path / "run" / "checkpoint").load().facts["loader"]["done"] == 6
    trainer = make_trainer(tmp_path / "run", save_every_steps=3)
    require_same(trainer, trainer.fit(), expected_trainer, expected)


def test_a_loader_that_does_not_repeat_itself_is_refused(tmp_path):
    class Fresh(AsDicts):
        generator_of_its_own = torch.Generator().manual_seed(0)

        def __iter__(self):
            for batch in super().__iter__():
                yield {**batch, "x": torch.randn(8, 3, generator=self.generator_of_its_own)}

    make_trainer(tmp_path, loader=Fresh(), monitors=[Stop(STOP_AT)]).fit()
    with pytest.raises(LoaderError, match="does not repeat its batches: number 4 of this epoch"):
        make_trainer(tmp_path, loader=Fresh()).fit()


class Endless:
    def __iter__(self):
        return iter(())


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: iter([1, 2]), "can be read only once"),
        (Endless, "give it a __len__"),
        (list, "no batch at all"),
        (
            lambda: DataLoader(EAGER, make_data(), 8, shuffle=True, mode="async"),
            'in a child process.*mode="sync"',
        ),
    ],
    ids=["iterator", "no length", "empty", "drawn elsewhere"],
)
def test_loaders_that_cannot_be_exact(tmp_path, make, said):
    loader = make()
    with pytest.raises(LoaderError, match=said):
        make_trainer(tmp_path, loader=loader or EmptyList()).fit()
    if hasattr(loader, "terminate"):
        loader.terminate()


class EmptyList(list):
    """Not false, as an empty list is."""

    def __bool__(self):
        return True


def test_a_rate_as_a_function_of_the_update(tmp_path):
    rates = []

    class Watch(QuietMonitor):
        def step(self, record):
            rates.append(trainer.optimizer.param_groups[0]["lr"])

    trainer = make_trainer(
        num_epochs=1, schedule=lambda update: 0.1 / (update + 1), monitors=[Watch()]
    )
    trainer.fit()
    assert rates == [0.1 / (update + 1) for update in range(NUM_BATCHES)]


def test_validation_uses_the_average(tmp_path):
    held_out = list(DataLoader(EAGER, make_data(), 16))
    trainer = make_trainer(tmp_path, validation_loader=held_out)
    result = trainer.fit()
    module = trainer.average.module.eval()
    with torch.no_grad():
        losses = [float(module(*batch)["loss"]) for batch in held_out]
    assert result.epochs[-1].validation_loss == pytest.approx(sum(losses) / len(losses))
    assert trainer.module.training
    again = load_result(tmp_path)
    assert again.epochs == result.epochs
    assert again.counted == "samples"
    assert "validation loss" in (tmp_path / "report.html").read_text()


def test_several_updates_a_call():
    options = EAGER.replace(device_iterations=2, gradient_accumulation=2)
    loader = DataLoader(options, make_data(), 4, shuffle=True)
    with pytest.raises(OptionsError, match="a call makes 2 updates"):
        make_trainer(options=options, loader=loader)
    trainer = make_trainer(options=options, loader=loader, average=None)
    result = trainer.fit()
    assert len(result.steps) == 3 * 2 * 4
    assert [epoch.samples for epoch in result.epochs] == [64] * 3


def test_graphs_are_counted_without_filler():
    result = make_trainer(kind="graphs", counted="graphs").fit()
    assert [epoch.samples for epoch in result.epochs] == [32] * 3


def test_a_loss_that_is_not_finite_ends_the_run(tmp_path):
    result = make_trainer(tmp_path, lr=1e30).fit()
    assert exit_code(result) == ExitCode.FAILED
    assert "the loss is" in result.note
    assert "in epoch 1 of 3, step 2 of 8" in result.note
    assert issubclass(NonFiniteError, FloatingPointError)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"lr": 0.5}, r"optimizer\.lr was 0\.01 and is 0\.5"),
        ({"gamma": 0.5}, r"schedule\.gamma was 0\.9 and is 0\.5"),
        ({"decay": 0.5}, r"average_decay was 0\.9 and is 0\.5"),
        ({"fixed": {"data": "b"}}, r"fixed\.data was 'a' and is 'b'"),
        ({"kind": "graphs"}, r"module was 'Regression' and is 'GraphRegression'"),
        ({"resume": False}, r"there is a checkpoint already, in .*choose another directory"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_other_settings_are_named(tmp_path, changes, said):
    make_trainer(tmp_path, num_epochs=1, fixed={"data": "a"}).fit()
    with pytest.raises(CheckpointError, match=said):
        make_trainer(tmp_path, **{"fixed": {"data": "a"}, **changes}).fit()


def test_there_must_be_something_to_resume(tmp_path):
    with pytest.raises(CheckpointError, match="there is no checkpoint in"):
        make_trainer(tmp_path, resume=True).fit()
    with pytest.raises(OptionsError, match="needs the directory"):
        make_trainer(resume=True)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_epochs": -1}, "num_epochs must not be negative"),
        ({"resume": "yes"}, 'True, False or "auto"'),
        ({"schedule_interval": "step"}, "'epoch' or 'update', got 'step'"),
        ({"directory": "x", "save_every_steps": 0}, "save_every_steps must be at least 1"),
        ({"directory": "x", "save_every_epochs": 0}, "save_every_epochs must be at least 1"),
        ({"average": WeightAverage(nn.Linear(1, 1), 0.9)}, "must follow the module"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_refused_values(changes, said):
    with pytest.raises(OptionsError, match=said):
        make_trainer(**changes)
    with pytest.raises(OptionsError, match="decay must be at least 0 and below 1"):
        WeightAverage(nn.Linear(1, 1), 1.0)


def test_forward_must_return_its_loss():
    class NoLoss(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 1)

        def forward(self, x, y):
            return {"error": nn.functional.mse_loss(self.layer(x), y)}

    module = NoLoss()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    trainer = Trainer(
        module, LOADERS["list"](), optimizer=optimizer, num_epochs=1, options=EAGER, progress="none"
    )
    with pytest.raises(OptionsError, match="forward must return its loss"):
        trainer.fit()
