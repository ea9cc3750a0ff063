"""Judging a module between epochs: the options of its program, evaluation mode, the mean loss."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar, final

import torch
from torch import Tensor, nn

from torchkiln.core import Options, OutputMode
from torchkiln.runtime import inference_model
from torchkiln.training._ranks import Ranks
from torchkiln.training._samples import count_samples
from torchkiln.training._steps import call, call_arguments, loss_of
from torchkiln.training._stopping import Check, Stopping

T = TypeVar("T")


def inference_options(options: Options) -> Options:
    """Return the options of the program that validates: one mini-batch a call, in one process."""
    return options.replace(
        device_iterations=1,
        gradient_accumulation=1,
        replication_factor=1,
        input_group_size=1,
        output_mode="default",
        output_period=1,
        anchors={},
        pipeline=None,
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
        ranks: The processes that train together.
    """

    def __init__(self, module: nn.Module, options: Options, ranks: Ranks) -> None:
        # Without a seed: making this program must not disturb the training's random numbers.
        options = inference_options(options).replace(output_mode=OutputMode.ALL, random_seed=None)
        self._module = module
        self._ranks = ranks
        self._program = inference_model(module, options, name="validation")
        # Of all processes at once. A program is not compiled where a process has no batch.
        self._is_prepared = False

    def evaluate(self, loader: Iterable[Any], stopping: Stopping) -> float:
        """Return the mean over all samples of `loader`, whose batches have one size.

        Args:
            loader: Made with options for one mini-batch a call; with several processes, each has
                its share.
            stopping: Divides the work.
        """
        with evaluating(self._module), keeping_random_numbers():
            own = iter(loader)
            first = list(itertools.islice(own, 1))
            if not self._is_prepared:
                self._ranks.each_host_once("compile the validation", lambda: self._compile(first))
                self._is_prepared = True
            rest = itertools.chain(first, own)
            parts = stopping.share("validation", lambda check: self._losses(rest, check))
        # Each stage has the whole model now, and the batches of its pipeline.
        batches = in_turn(self._ranks.of_copies(parts))
        loss_sum = sum(loss * samples for loss, samples in batches)
        return loss_sum / max(sum(samples for _, samples in batches), 1)

    def _compile(self, batches: list[Any]) -> None:
        for batch in batches:  # none, if the share of this process is empty
            args, kwargs = call_arguments(batch)
            self._program.compile(*args, **kwargs)

    def _losses(self, batches: Iterable[Any], check: Check) -> list[tuple[float, int]]:
        """Return loss and number of samples of each batch of this process."""
        found = []
        for batch in batches:
            loss: Tensor = loss_of(call(self._program, batch))
            found.append((float(loss.double().mean()), int(count_samples(batch, 1).sum())))
            check()
        return found


def in_turn(parts: Sequence[Sequence[T]]) -> list[T]:
    """Return what each rank found, in the order in which one process would find it.

    Loaders deal batches to ranks one by one: the first is rank 0's, the second is rank 1's.
    """
    longest = max(map(len, parts))
    return [part[turn] for turn in range(longest) for part in parts if turn < len(part)]
