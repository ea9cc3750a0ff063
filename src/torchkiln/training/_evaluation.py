"""Judging a module between epochs: the options of its program, evaluation mode, the mean loss."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, final

import torch
from torch import Tensor, nn

from torchkiln.core import Options, OutputMode
from torchkiln.runtime import inference_model
from torchkiln.training._samples import count_samples
from torchkiln.training._steps import call, loss_of


def inference_options(options: Options) -> Options:
    """Return the options of the program that validates: one mini-batch a call."""
    return options.replace(
        device_iterations=1,
        gradient_accumulation=1,
        replication_factor=1,
        input_group_size=1,
        output_mode="default",
        output_period=1,
        anchors={},
    )


@contextlib.contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Put a module that may be in training into evaluation mode, and back."""
    # Each part by itself: some may be frozen, such as BatchNorm of a network that is fine-tuned.
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, was_training in modes:
            part.training = was_training


@contextlib.contextmanager
def keeping_random_numbers() -> Iterator[None]:
    """Put torch's generator back: loaders draw numbers when they start workers, once a process."""
    before = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(before)


@final
class LossEvaluator:
    """The mean loss of held-out samples.

    Args:
        module: With the weights to judge, live; forward returns its loss as in training.
        options: Of the training program.
    """

    def __init__(self, module: nn.Module, options: Options) -> None:
        # Without a seed: making this program must not disturb the training's random numbers.
        options = inference_options(options).replace(output_mode=OutputMode.ALL, random_seed=None)
        self._module = module
        self._program = inference_model(module, options, name="validation")

    def evaluate(self, loader: Iterable[Any], check: Callable[[], None]) -> float:
        """Return the mean over all samples of `loader`, whose batches have one size.

        Args:
            loader: Made with options for one mini-batch a call.
            check: Called after each batch; may raise to stop.
        """
        loss_sum, num_samples = 0.0, 0
        with evaluating(self._module), keeping_random_numbers():
            for batch in loader:
                loss: Tensor = loss_of(call(self._program, batch))
                samples = int(count_samples(batch, 1).sum())
                loss_sum += float(loss.double().mean()) * samples
                num_samples += samples
                check()
        return loss_sum / max(num_samples, 1)
