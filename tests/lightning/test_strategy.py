"""Lightning's trainer on compiled steps: the same training as without, or an error that helps."""

import copy
import warnings

import pytest
import torch
from torch import nn

pl = pytest.importorskip("lightning.pytorch", reason="lightning is not installed")

from lightning.fabric.utilities.warnings import PossibleUserWarning  # noqa: E402
from lightning.pytorch.callbacks import GradientAccumulationScheduler  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402
from torchmetrics.classification import MulticlassAccuracy  # noqa: E402

from torchkiln import DynamicShapeError, Options, ShapeChanged, TorchkilnError  # noqa: E402
from torchkiln.lightning import TorchkilnStrategy  # noqa: E402

CAPTURE = Options(backend="capture", show_progress=False)
# Native code adds up in another order than PyTorch's own kernels.
CLOSE = {"rtol": 1e-4, "atol": 1e-6}


@pytest.fixture(autouse=True)
def _quiet(monkeypatch, tmp_path):
    """Lightning's advice on workers and versions; everything else stays an error."""
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=PossibleUserWarning)
        warnings.filterwarnings("ignore", message=".*LeafSpec.*")
        warnings.filterwarnings("ignore", message=".*GPU available but not used.*")
        warnings.filterwarnings("ignore", message=".*lightning.*", category=DeprecationWarning)
        yield


class Classifier(pl.LightningModule):
    """A small network with dropout and batch normalisation, a schedule and logs."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            # Without a bias, whose gradient before BatchNorm is nothing but rounding errors.
            nn.Linear(6, 16, bias=False),
            nn.BatchNorm1d(16),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Linear(16, 3),
        )
        self.weight = 1.0
        self.losses = []

    def training_step(self, batch, batch_idx):
        x, y = batch
        logits = self.net(x)
        loss = self.weight * nn.functional.cross_entropy(logits, y)
        self.log("loss", loss, on_step=True, on_epoch=True, prog_bar=True)
        self.log_dict({"hits": (logits.argmax(1) == y).float().mean()}, on_epoch=True)
        return {"loss": loss, "logits": logits}

    def on_train_batch_end(self, outputs, batch, batch_idx):
        assert outputs["logits"].shape == (8, 3)
        self.losses.append(outputs["loss"].item())

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val", nn.functional.cross_entropy(self.net(x), y))

    def predict_step(self, batch, batch_idx):
        return self.net(batch[0]).argmax(1)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def loader(batch_size=8, num=40):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(num, 6, generator=generator)
    y = torch.randint(3, (num,), generator=generator)
    return DataLoader(TensorDataset(x, y), batch_size=batch_size)


def trainer(strategy="auto", **settings):
    settings = {"max_epochs": 2, "logger": False, "enable_checkpointing": False, **settings}
    return pl.Trainer(
        strategy=strategy,
        accelerator="cpu",
        enable_progress_bar=False,
        enable_model_summary=False,
        **settings,
    )


def fit(module, strategy, data=None, **settings):
    torch.manual_seed(5)
    run = trainer(strategy, **settings)
    run.fit(module, loader() if data is None else data)
    return run


@pytest.fixture
def module():
    torch.manual_seed(0)
    return Classifier()


def assert_same(module, other):
    for (name, mine), theirs in zip(
        module.state_dict().items(), other.state_dict().values(), strict=True
    ):
        torch.testing.assert_close(mine, theirs, **CLOSE, msg=lambda text, name=name: name + text)


@pytest.mark.parametrize("settings", [{}, {"gradient_clip_val": 0.05}], ids=["plain", "clipped"])
def test_losses_weights_and_logs_are_those_of_plain_lightning(module, settings):
    other = copy.deepcopy(module)
    mine = fit(module, TorchkilnStrategy(CAPTURE), **settings)
    plain = fit(other, "auto", **settings)
    torch.testing.assert_close(torch.tensor(module.losses), torch.tensor(other.losses), **CLOSE)
    assert len(module.losses) == 10
    assert_same(module, other)
    assert set(mine.logged_metrics) == set(plain.logged_metrics)
    for name, value in plain.logged_metrics.items():
        torch.testing.assert_close(mine.logged_metrics[name], value, **CLOSE)
    assert mine.global_step == plain.global_step == 10
    assert mine.optimizers[0].param_groups[0]["lr"] == plain.optimizers[0].param_groups[0]["lr"]


def test_clipping_changes_the_training(module):
    other = copy.deepcopy(module)
    fit(module, TorchkilnStrategy(CAPTURE), gradient_clip_val=1e-3, max_epochs=1)
    fit(other, TorchkilnStrategy(CAPTURE), max_epochs=1)
    # Adam is blind to the scale of all gradients, but not to that of one step.
    assert module.losses[-1] != other.losses[-1]


@pytest.mark.inductor
def test_native_code_trains_as_plain_lightning(module, cache_dir):
    other = copy.deepcopy(module)
    options = Options(backend="inductor", cache_dir=cache_dir, show_progress=False)
    fit(module, TorchkilnStrategy(options))
    fit(other, "auto")
    torch.testing.assert_close(torch.tensor(module.losses), torch.tensor(other.losses), **CLOSE)
    again = Classifier()
    again.load_state_dict(module.state_dict())
    # From the cache, where training_step does not run: logs are still made.
    run = fit(again, TorchkilnStrategy(options), max_epochs=1)
    assert "loss_epoch" in run.logged_metrics


def test_validation_prediction_and_a_resumed_checkpoint(module, tmp_path):
    module.net[3] = nn.Identity()  # a loader for validation draws from the generator, too
    other = copy.deepcopy(module)
    whole = fit(other, TorchkilnStrategy(CAPTURE), max_epochs=2)
    torch.manual_seed(5)
    first = trainer(TorchkilnStrategy(CAPTURE), max_epochs=1)
    first.fit(module, loader(), loader())
    assert "val" in first.callback_metrics
    first.save_checkpoint(tmp_path / "half.ckpt")
    resumed = Classifier()
    resumed.net[3] = nn.Identity()
    second = trainer(TorchkilnStrategy(CAPTURE), max_epochs=2)
    second.fit(resumed, loader(), ckpt_path=tmp_path / "half.ckpt", weights_only=False)
    assert second.global_step == whole.global_step
    assert_same(resumed, other)
    predicted = torch.cat(second.predict(resumed, loader()))
    resumed.eval()
    expected = torch.cat([resumed.net(x).argmax(1) for x, _ in loader()])
    assert torch.equal(predicted, expected)


def test_one_compilation_for_a_whole_fit(module):
    seen = []

    class Counting(pl.Callback):
        def on_train_end(self, trainer, pl_module):
            seen.append(trainer.strategy._step._program.num_captures)

    fit(module, TorchkilnStrategy(CAPTURE), callbacks=[Counting()])
    assert seen == [1]


def test_a_part_that_is_set_to_eval_during_training_counts(module):
    other = copy.deepcopy(module)

    class Freeze(pl.Callback):
        def on_train_epoch_start(self, trainer, pl_module):
            if trainer.current_epoch == 1:
                pl_module.net[1].eval()
                pl_module.net[0].weight.requires_grad_(False)

    fit(module, TorchkilnStrategy(CAPTURE), callbacks=[Freeze()])
    fit(other, "auto", callbacks=[Freeze()])
    assert_same(module, other)


def variant(**members):
    """Return a Classifier with other methods."""
    return type("Variant", (Classifier,), members)()


def uses(expression):
    """Return a training step that reads something of the run."""

    def training_step(self, batch, batch_idx):
        eval(expression, {"self": self, "batch_idx": batch_idx, "batch": batch})
        return Classifier.training_step(self, batch, batch_idx)

    return training_step


@pytest.mark.parametrize(
    ("expression", "remedy"),
    [
        ("self.current_epoch", "register_buffer"),
        ("self.global_step", "register_buffer"),
        ("self.trainer", "register_buffer"),
        ("self.logger", "self.log"),
        ("self.print('x')", "on_train_batch_end"),
        ("self.optimizers()", "on_train_batch_end"),
        ("self.manual_backward(1)", "automatic_optimization"),
        ("self.losses.append(1)", "on_train_batch_end"),
        ("setattr(self, 'counter', 1)", "on_train_batch_end"),
        ("self.eval()", "on_train_batch_end"),
        ("self.log('x', 1.0, reduce_fx=max)", "pass a number or a name"),
    ],
)
def test_what_the_first_step_would_freeze_is_an_error(expression, remedy):
    module = variant(training_step=uses(expression))
    with pytest.raises(TorchkilnError, match=remedy):
        fit(module, TorchkilnStrategy(CAPTURE))
    # The module is as it was.
    assert type(module).__name__ == "Variant"
    assert "_torchkiln_notes" not in vars(module)


def test_python_that_branches_on_the_number_of_the_batch_is_an_error():
    with pytest.raises(DynamicShapeError):
        fit(
            variant(training_step=uses("1 if batch_idx % 2 == 0 else 2")),
            TorchkilnStrategy(CAPTURE),
        )


def test_the_number_of_the_batch_may_be_computed_with():
    def training_step(self, batch, batch_idx):
        self.log("index", batch_idx * 1.0)
        return Classifier.training_step(self, batch, batch_idx)

    run = fit(variant(training_step=training_step), TorchkilnStrategy(CAPTURE))
    assert run.logged_metrics["index"] == 4


@pytest.mark.parametrize("place", ["module", "dict"])
def test_metrics_of_torchmetrics_are_refused(place):
    module = Classifier()
    metric = MulticlassAccuracy(num_classes=3)
    if place == "module":
        module.metric = metric
        expression = "self.metric(batch[0][:, :3], batch[1])"
    else:
        module.metrics = nn.ModuleDict({"one": metric})
        expression = "self.metrics['one'].update(batch[0][:, :3], batch[1])"
    module.__class__ = type("Measured", (Classifier,), {"training_step": uses(expression)})
    with pytest.raises(TorchkilnError, match=r"torchmetrics.*on_train_batch_end"):
        fit(module, TorchkilnStrategy(CAPTURE))


def test_an_attribute_that_the_step_read_may_not_change():
    def on_train_epoch_start(self):
        self.weight = 1.0 + self.current_epoch

    with pytest.raises(TorchkilnError, match=r"self\.weight = 1\.0, and it is 2\.0.*buffer"):
        fit(variant(on_train_epoch_start=on_train_epoch_start), TorchkilnStrategy(CAPTURE))


def test_a_last_batch_of_another_size_is_an_error(module):
    with pytest.raises(ShapeChanged, match="drop_last"):
        fit(module, TorchkilnStrategy(CAPTURE), loader(num=42))


@pytest.mark.parametrize(
    ("settings", "remedy"),
    [
        ({"accumulate_grad_batches": 2}, "larger batches"),
        ({"callbacks": [GradientAccumulationScheduler({1: 2})]}, "larger batches"),
        ({"precision": "bf16-mixed"}, "Options.precision='bfloat16'"),
        ({"detect_anomaly": True}, "check_finite"),
        ({"gradient_clip_val": 1.0, "gradient_clip_algorithm": "value"}, "norm"),
    ],
)
def test_settings_of_the_trainer_that_a_step_cannot_have(module, settings, remedy):
    with pytest.raises(TorchkilnError, match=remedy):
        fit(module, TorchkilnStrategy(CAPTURE), **settings)


@pytest.mark.parametrize(
    "hook",
    [
        "on_before_zero_grad",
        "on_after_backward",
        "on_before_optimizer_step",
        "on_before_backward",
        "backward",
        "optimizer_step",
        "optimizer_zero_grad",
        "configure_gradient_clipping",
    ],
)
def test_hooks_inside_a_step_are_refused_by_name(hook):
    with pytest.raises(TorchkilnError, match=rf"Variant\.{hook} .*on_train_batch_start"):
        fit(variant(**{hook: lambda self, *args: None}), TorchkilnStrategy(CAPTURE))


def test_a_callback_that_looks_at_gradients_is_refused(module):
    class Watch(pl.Callback):
        def on_after_backward(self, trainer, pl_module):
            """Look at gradients."""

    with pytest.raises(TorchkilnError, match=r"Watch\.on_after_backward"):
        fit(module, TorchkilnStrategy(CAPTURE), callbacks=[Watch()])


def test_manual_optimisation_and_skipped_steps_are_refused(module):
    module.automatic_optimization = False
    with pytest.raises(TorchkilnError, match="automatic_optimization = True"):
        fit(module, TorchkilnStrategy(CAPTURE))
    with pytest.raises(TorchkilnError, match="returning None"):
        fit(variant(training_step=lambda self, batch: None), TorchkilnStrategy(CAPTURE))


def test_a_step_that_reads_its_batches_itself_is_refused():
    with pytest.raises(TorchkilnError, match=r"dataloader_iter.*batch, batch_idx"):
        fit(variant(training_step=lambda self, dataloader_iter: None), TorchkilnStrategy(CAPTURE))


def test_a_module_that_went_through_torch_compile_is_refused(module):
    with pytest.raises(TorchkilnError, match=r"torch\.compile.*the module itself"):
        fit(torch.compile(module), TorchkilnStrategy(CAPTURE))


@pytest.mark.parametrize(
    "options",
    [{"device_iterations": 2}, {"gradient_accumulation": 2}, {"replication_factor": 2}],
)
def test_options_that_make_several_updates_or_batches_of_one_are_refused(options):
    with pytest.raises(TorchkilnError, match="leave it at 1"):
        TorchkilnStrategy(CAPTURE.replace(**options))
