"""A harness that compares a wrapped model with plain PyTorch, step by step."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn

import poptorch
from torchkiln.data import flatten

Batch = Sequence[Any]


class TrainingStepper:
    """Trains two copies of a model, one of them wrapped, and checks that they stay equal.

    Forward takes the entries of a batch and returns (out, loss).

    Args:
        model: Copied twice; put into training mode.
        lr: Learning rate of both.
        optimizer: Class of both optimisers.
        options: Of the wrapped model; copied.
        rtol: Relative tolerance; None is torch's default.
        atol: Absolute tolerance; None is torch's default.
        enable_fp_exception: Fail on losses and outputs that are not finite.
        equal_nan: Whether NaN equals NaN.
    """

    def __init__(
        self,
        model: nn.Module,
        lr: float = 0.001,
        optimizer: Callable[..., torch.optim.Optimizer] = poptorch.optim.Adam,
        options: poptorch.Options | None = None,
        rtol: float | None = None,
        atol: float | None = None,
        enable_fp_exception: bool = True,
        equal_nan: bool = False,
    ) -> None:
        model.train()
        self.lr = lr
        self.rtol = rtol
        self.atol = atol
        self.equal_nan = equal_nan
        self.options = poptorch.Options() if options is None else options.clone()
        self.options.Precision.enableFloatingPointExceptions(enable_fp_exception)
        self.cpu_model = copy.deepcopy(model)
        self.ipu_model = copy.deepcopy(model)
        inference_options = self.options.clone()
        inference_options.Training.gradientAccumulation(1)
        self.inference_model = poptorch.inferenceModel(self.ipu_model, inference_options)
        self.optimizer: torch.optim.Optimizer | None = None
        self.training_model: poptorch.PoplarExecutor | None = None
        if any(True for _ in model.parameters()):
            self.optimizer = optimizer(self.cpu_model.parameters(), lr=lr)
            self.training_model = poptorch.trainingModel(
                self.ipu_model, self.options, optimizer(self.ipu_model.parameters(), lr=lr)
            )
            self.check_parameters()

    def run(self, num_steps: int, batch: Batch, ipu_batch: Batch | None = None) -> None:
        """Do `num_steps` steps on both copies and compare output, loss and parameters after each.

        Args:
            num_steps: How many.
            batch: Arguments of forward.
            ipu_batch: Arguments of the wrapped copy, if they differ (by padding); outputs are then
                compared in the rows that both have.
        """
        other = batch if ipu_batch is None else ipu_batch
        for _ in range(num_steps):
            expected = self.cpu_step(batch)
            actual = self.ipu_step(other)
            for name, one, two in zip(("Output", "Loss"), actual, expected, strict=True):
                if ipu_batch is not None and name == "Output":
                    one, two = _common_rows(one, two)
                self.assert_close(one, two, name)
            self.check_parameters()

    def run_inference(self, batch: Batch) -> None:
        """Run forward of both copies in evaluation mode, and compare what they return."""
        self.cpu_model.eval()
        self.inference_model.eval()
        with torch.no_grad():
            expected = self.cpu_model(*batch)
        self.assert_close(self.inference_model(*batch), expected, "Inference output")
        self.cpu_model.train()

    def cpu_step(self, batch: Batch) -> tuple[Any, torch.Tensor]:
        """Do one step of plain PyTorch and return (out, loss)."""
        self._require_parameters().zero_grad()
        out, loss = self.cpu_model(*batch)
        loss.backward()
        self._require_parameters().step()
        return out, loss

    def ipu_step(self, batch: Batch, copy_weights: bool = True) -> tuple[Any, torch.Tensor]:
        """Do one step of the wrapped model and return (out, loss)."""
        self._require_parameters()
        model: Any = self.training_model
        out, loss = model(*batch)
        if copy_weights:
            model.copyWeightsToHost()
        return out, loss

    def check_parameters(self) -> None:
        """Compare all parameters of both copies."""
        others = dict(self.ipu_model.named_parameters())
        for name, parameter in self.cpu_model.named_parameters():
            self.assert_close(others[name], parameter, name)

    def benchmark(
        self, num_steps: int, batch: Batch, devices: Iterable[str] | str = ("ipu")
    ) -> dict[str, float]:
        """Return the seconds that `num_steps` steps take, as `ipu_time` and `cpu_time`.

        Raises:
            NotImplementedError: for any other device.
        """
        steps = {"ipu": lambda: self.ipu_step(batch, False), "cpu": lambda: self.cpu_step(batch)}
        times = {}
        for device in [devices] if isinstance(devices, str) else devices:
            if device not in steps:
                raise NotImplementedError(f"There is no benchmark for {device!r}; use ipu or cpu")
            steps[device]()  # the first one compiles
            start = time.perf_counter()
            for _ in range(num_steps):
                steps[device]()
            times[f"{device}_time"] = time.perf_counter() - start
        return times

    def assert_close(self, actual: Any, expected: Any, name: str) -> None:
        """Raise `AssertionError` where two results differ by more than the tolerances."""
        one, two = flatten(actual)[0], flatten(expected)[0]
        if len(one) != len(two):
            raise AssertionError(f"{name}: {len(one)} tensors, but {len(two)} were expected")
        # torch wants both tolerances or none.
        tolerances = (self.rtol, self.atol)
        rtol, atol = tolerances if tolerances == (None, None) else (t or 0.0 for t in tolerances)
        for first, second in zip(one, two, strict=True):
            torch.testing.assert_close(
                first,
                second,
                rtol=rtol,
                atol=atol,
                equal_nan=self.equal_nan,
                check_dtype=False,
                msg=lambda text: f"{name} was not equal:\n{text}",
            )

    def _require_parameters(self) -> torch.optim.Optimizer:
        if self.optimizer is None:
            raise AssertionError("The model has no parameters to train; use run_inference")
        return self.optimizer


def _common_rows(one: torch.Tensor, two: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    rows = min(len(one), len(two))
    return one[:rows], two[:rows]
