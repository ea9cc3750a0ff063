"""`TorchkilnStrategy`: Lightning's trainer, whose training steps are one compiled program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import lightning.pytorch as pl
import torch
from lightning.fabric.plugins import CheckpointIO
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor

from torchkiln.core import Options
from torchkiln.lightning._refusals import check_accumulation, check_fit, check_options
from torchkiln.lightning._step import CompiledStep


@final
class TorchkilnStrategy(SingleDeviceStrategy):
    """Trains a LightningModule with a compiled step on one device.

    `training_step`, backward and the update of the weights become one program, when the first batch
    comes. Validation, testing and prediction stay Lightning's own. What cannot be compiled without
    a difference is an error that says what to do instead (docs/lightning.md).

    Args:
        options: Of the program; one batch of the trainer is always one update.
        device: Where the module lives.
        checkpoint_io: As in Lightning's own strategies.
    """

    strategy_name = "torchkiln"

    def __init__(
        self,
        options: Options | None = None,
        *,
        device: str | torch.device = "cpu",
        checkpoint_io: CheckpointIO | None = None,
    ) -> None:
        super().__init__(device=device, checkpoint_io=checkpoint_io)
        self._options = Options() if options is None else options
        check_options(self._options)
        self._step: CompiledStep | None = None
        self._trainer: pl.Trainer | None = None

    def setup(self, trainer: pl.Trainer) -> None:
        """Connect to the trainer; refuse what would silently be different."""
        super().setup(trainer)
        self._trainer = trainer
        self._forget_step()
        if trainer.state.fn == TrainerFn.FITTING:
            module = self.lightning_module
            check_fit(trainer, module)
            # What Lightning does to gradients before an update is part of the program.
            if trainer.gradient_clip_val:
                self.optimizers[0].max_grad_norm = float(trainer.gradient_clip_val)

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Run forward, backward and update, and return what `training_step` returns."""
        if self._step is None:
            # Only now: checkpoints are loaded, and parameters are where they stay.
            module, optimizer = self.lightning_module, self.optimizers[0]
            self._step = CompiledStep(module, optimizer, self._options)
        assert self._trainer is not None
        check_accumulation(self._trainer)
        return self._step(*args, **kwargs)

    def backward(self, closure_loss: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Return the loss: the step has done backward already."""
        return closure_loss

    def optimizer_step(
        self,
        optimizer: torch.optim.Optimizer,
        closure: Callable[[], Any],
        model: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Run the closure: its training step has the update in it."""
        return closure()

    def teardown(self) -> None:
        """Drop the program; weights and optimiser state stay."""
        self._forget_step()
        super().teardown()

    def _forget_step(self) -> None:
        if self._step is not None:
            self._step.destroy()
            self._step = None
