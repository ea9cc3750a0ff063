"""A small LightningModule for clients that have a Lightning of their own version."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from client_report import ClientReport
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

# Losses and weights after 15 updates; native code adds up in another order than PyTorch.
TOLERANCE = 1e-4


def make_module(lightning: Any) -> Any:
    """Return the same small classifier for any version of Lightning, `lightning` being `pl`."""

    class Classifier(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
            self.losses: list[float] = []

        def training_step(self, batch: Any, batch_idx: Any = None) -> Any:
            x, y = batch
            return nn.functional.cross_entropy(self.net(x), y)

        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            self.losses.append(float(outputs["loss"]))

        def validation_step(self, batch: Any, batch_idx: Any = None) -> Any:
            x, y = batch
            return nn.functional.cross_entropy(self.net(x), y)

        def predict_step(self, batch: Any, batch_idx: Any = None) -> Any:
            return self.net(batch[0])

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.2, momentum=0.9)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]

    torch.manual_seed(0)
    return Classifier()


def make_loader() -> DataLoader:
    """Return 5 batches of a task that can be learnt."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(80, 8, generator=generator)
    return DataLoader(TensorDataset(x, x[:, :3].argmax(1)), batch_size=16, drop_last=True)


def try_lightning(
    report: ClientReport,
    lightning: Any,
    settings: Callable[[], dict[str, Any]],
    *,
    load: dict[str, Any] | None = None,
) -> None:
    """Train, validate, checkpoint, resume and predict, and compare with the CPU.

    Args:
        report: Where it is noted.
        lightning: `pytorch_lightning` or `lightning.pytorch`.
        settings: Of the trainers that use Torchkiln; each gets an accelerator or a strategy anew.
        load: Further arguments of `fit` for loading a checkpoint.
    """
    warnings.filterwarnings("ignore")
    plain = {"accelerator": "cpu", "devices": 1}

    def trainer(epochs: int, own: dict[str, Any]) -> Any:
        return lightning.Trainer(
            max_epochs=epochs,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=False,
            **own,
        )

    module = make_module(lightning)
    reference, interrupted = copy.deepcopy(module), copy.deepcopy(module)
    whole = trainer(3, settings())
    whole.fit(module, make_loader(), make_loader())
    report.trains = len(module.losses) == 15 and module.losses[-1] < 0.8 * module.losses[0]

    trainer(3, plain).fit(reference, make_loader(), make_loader())
    predicted = torch.cat(trainer(1, settings()).predict(module, make_loader()))
    expected = torch.cat(trainer(1, plain).predict(reference, make_loader()))
    worst = max(
        largest_difference(torch.tensor(module.losses), torch.tensor(reference.losses)),
        largest_difference(predicted, expected),
        *map(largest_difference, module.state_dict().values(), reference.state_dict().values()),
    )
    report.matches = worst <= TOLERANCE

    first, path = trainer(2, settings()), Path("half.ckpt")
    first.fit(interrupted, make_loader(), make_loader())
    first.save_checkpoint(path)
    resumed = make_module(lightning)
    trainer(3, settings()).fit(
        resumed, make_loader(), make_loader(), ckpt_path=str(path), **(load or {})
    )
    report.checkpoints = len(resumed.losses) == 5 and all(
        largest_difference(mine, other) <= TOLERANCE
        for mine, other in zip(
            resumed.state_dict().values(), module.state_dict().values(), strict=True
        )
    )
    report.detail += (
        f" A classifier trains for 3 epochs, validates, predicts, and resumes after 2; losses, "
        f"weights and predictions differ from the CPU's by at most {worst:.1e}."
    )
    report.detail = report.detail.strip()


def largest_difference(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one.detach() - other.detach()).abs().max())
