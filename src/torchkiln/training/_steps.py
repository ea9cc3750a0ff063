"""One call of training as a compiled program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, final

import torch
from torch import Tensor, nn

from torchkiln.core import Options, OptionsError, OutputMode
from torchkiln.runtime import Program, training_model
from torchkiln.training._folding import Folding
from torchkiln.training._notes import StepNotes, StepResult


class TrainingStep(Protocol):
    """Trains on a combined batch: `device_iterations` weight updates."""

    @property
    def seconds_aside(self) -> float:
        """Seconds inside calls so far that went into reports and not into training."""

    def compile(self, batch: Any) -> float | None:
        """Get ready for batches like this one; return the seconds, None if nothing is compiled."""

    def __call__(self, batch: Any, counts: Tensor, is_stopping: Callable[[], bool]) -> StepResult:
        """Train, and return what came of it, on all processes that take part.

        Args:
            batch: Of this process.
            counts: Real samples in each of its mini-batches.
            is_stopping: Whether this process wants to stop.
        """

    def use_learning_rate(self) -> None:
        """Take note of numbers that changed in the optimiser."""

    def finish(self) -> None:
        """Take note that no further call comes."""


@final
class ProgramStep:
    """Whole calls in one program.

    Args:
        module: Its forward takes a batch and returns the loss.
        options: Of the program; with several processes, of this one.
        optimizer: Over the parameters of `module`.
    """

    def __init__(
        self, module: nn.Module, options: Options, optimizer: torch.optim.Optimizer
    ) -> None:
        options = options.replace(output_mode=OutputMode.ALL)
        if options.synchronizes:
            # The loop looks at the losses of all ranks, and lets all of them stop at the same step.
            options = options.replace(check_finite=False)
        self._program = training_model(module, options, optimizer)
        self._optimizer = optimizer
        self._notes: StepNotes | None = None
        if options.synchronizes:
            self._notes = StepNotes(Folding.of(options), loss_of)
            self._program.exchange_notes(self._notes.size, self._notes.write)

    @property
    def seconds_aside(self) -> float:
        return self._program.seconds_aside

    def compile(self, batch: Any) -> float | None:
        args, kwargs = call_arguments(batch)
        self._program.compile(*args, **kwargs)
        return self._program.compilation_time

    def __call__(self, batch: Any, counts: Tensor, is_stopping: Callable[[], bool]) -> StepResult:
        if self._notes is None:
            losses = loss_of(call(self._program, batch)).reshape(-1).cpu()
            return StepResult(losses=losses, counts=counts)
        self._notes.begin(counts, is_stopping)
        call(self._program, batch)
        return self._notes.read(self._program.notes)

    def use_learning_rate(self) -> None:
        self._program.set_optimizer(self._optimizer)

    def finish(self) -> None:
        self._program.finish_profile()


def call(program: Program, batch: Any) -> Any:
    """Call a program with a batch."""
    args, kwargs = call_arguments(batch)
    return program(*args, **kwargs)


def call_arguments(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments that a batch stands for: names of a dict, places of a tuple or list."""
    # Not every Mapping: PyG's batches are objects to most models.
    if isinstance(batch, dict):
        return (), batch
    # A named tuple is a value of its own to nobody: loaders make them of samples.
    return (tuple(batch), {}) if isinstance(batch, tuple | list) else ((batch,), {})


def loss_of(outputs: Any) -> Tensor:
    """Return the loss among what forward returned: all of it, its "loss", or its last.

    Raises:
        OptionsError: There is no tensor in that place.
    """
    if isinstance(outputs, Mapping):
        outputs = outputs.get("loss")
    elif isinstance(outputs, tuple | list) and outputs:
        outputs = outputs[-1]
    if not isinstance(outputs, Tensor):
        raise OptionsError(
            "forward must return its loss: alone, as the last of several values, or as 'loss' of a "
            f"dict; found {type(outputs).__name__} there"
        )
    return outputs
