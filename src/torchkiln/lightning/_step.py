"""One compiled step of a LightningModule: `training_step`, backward and update in one program."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, final

import lightning.pytorch as pl
import torch
from torch import Tensor, nn

from torchkiln.core import CaptureError, Options, ShapeChanged
from torchkiln.lightning._recording import copy_plain, recorded
from torchkiln.runtime import identity_loss, training_model

_MISSING = object()


class TrainingStep(nn.Module):
    """What is compiled: `training_step`, and what it logs."""

    def __init__(self, module: pl.LightningModule) -> None:
        super().__init__()
        self.module = module

    def forward(self, *arguments: Any) -> dict[str, Any]:
        with recorded(self.module) as notes:
            output = self.module.training_step(*arguments)
        # As text: it is kept with the executable, in the cache, too.
        told = json.dumps({"calls": notes.calls, "reads": notes.reads})
        return {"output": _marked(output), "logged": notes.values, "notes": told}


def _marked(output: Any) -> Any:
    """Return what `training_step` returned, with its loss marked as the one to train on."""
    if isinstance(output, Tensor):
        return _loss(output)
    if isinstance(output, Mapping) and isinstance(output.get("loss"), Tensor):
        return {**output, "loss": _loss(output["loss"])}
    raise CaptureError(
        f"training_step returned {type(output).__name__}; a compiled step needs the loss, or a "
        "dict with 'loss', in every step (a step cannot be skipped by returning None)"
    )


def _loss(loss: Tensor) -> Tensor:
    if loss.numel() != 1:
        raise CaptureError(
            f"the loss of training_step has the shape {tuple(loss.shape)}; return one number, such "
            "as loss.mean()"
        )
    return identity_loss(loss, "none")


@final
class CompiledStep:
    """Runs `training_step` as a program, as often as the trainer asks for it.

    Args:
        module: Whose step is compiled, when it first runs.
        optimizer: Lightning's only one.
        options: Of the program.
    """

    def __init__(
        self, module: pl.LightningModule, optimizer: torch.optim.Optimizer, options: Options
    ) -> None:
        self._module = module
        self._optimizer = optimizer
        self._program = training_model(TrainingStep(module), options, optimizer)
        self._parts = list(module.modules())
        self._parameters = list(module.parameters())
        self._numbers: list[Any] = self._numbers_now()
        self._modes: list[bool] = []
        self._told = ""
        self._calls: list[dict[str, Any]] = []
        self._reads: dict[str, Any] = {}

    def __call__(self, batch: Any, *index: int) -> Any:
        """Train on a batch, log what `training_step` logs, and return what it returns."""
        self._notice_changes()
        # As a tensor: a number would be compiled in.
        try:
            result = self._program(batch, *map(torch.tensor, index))
        except ShapeChanged as error:
            raise ShapeChanged(
                f"{error}; all batches must be of one size: pass drop_last=True to the DataLoader"
            ) from None
        if result["notes"] != self._told:
            self._take_notes(result["notes"])
        for call, value in zip(self._calls, result["logged"], strict=True):
            self._module.log(value=value, **call)
        return result["output"]

    def destroy(self) -> None:
        self._program.destroy()

    def _take_notes(self, told: str) -> None:
        notes = json.loads(told)
        self._told, self._calls, self._reads = told, notes["calls"], notes["reads"]

    def _notice_changes(self) -> None:
        """Take over the optimiser's numbers; compile again for other modes; refuse the rest."""
        numbers = self._numbers_now()
        if numbers != self._numbers:
            self._program.set_optimizer(self._optimizer)
            self._numbers = numbers
        attributes = vars(self._module)
        for name, value in self._reads.items():
            now = copy_plain(attributes.get(name, _MISSING))
            if now != value:
                raise CaptureError(
                    f"training_step was compiled with self.{name} = {value!r}, and it is {now!r} "
                    "now; keep a number that changes in a buffer: "
                    f"self.register_buffer({name!r}, torch.tensor(...)), and fill it in a hook"
                )
        modes = [part.training for part in self._parts]
        modes += [parameter.requires_grad for parameter in self._parameters]
        if modes != self._modes:
            if self._modes:
                self._program.destroy()
            self._modes = modes

    def _numbers_now(self) -> list[Any]:
        groups = self._optimizer.param_groups
        return [
            [
                value.item() if isinstance(value, Tensor) else value
                for key, value in group.items()
                if key != "params"
            ]
            for group in groups
        ]
