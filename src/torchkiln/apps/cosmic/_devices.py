"""What a compute mode stands for: who updates, who loads, who runs the network.

The trainer is written against `Device`, so that the difference between plain PyTorch and a static
program is all in this file; examples/cosmic_tagger.py has a third one, in PopTorch's words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sized
from typing import Any, Protocol, final

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, Sampler

from torchkiln.apps.cosmic._settings import ComputeMode, OptimizerKind, Settings
from torchkiln.core import Backend, Options, OptionsError, OutputMode
from torchkiln.data import DataLoader
from torchkiln.distributed import current
from torchkiln.runtime import Program, inference_model, training_model
from torchkiln.runtime.execute._precision import warn_if_slow

# Of the original: a smaller one lets weights of tiny gradients take giant steps.
_RMSPROP_EPS = 1e-4
_SGD_MOMENTUM = 0.9
# Where the network is in the module that is trained.
NETWORK = "segmentation.model.network."


class Batches(Iterable[Any], Sized, Protocol):
    """Batches of images and labels."""


class TrainingStep(Protocol):
    """Trains on the batches of one weight update."""

    def compile(self, images: Tensor, labels: Tensor) -> float | None:
        """Get ready for batches like this one; return the seconds, None if nothing is compiled."""

    def __call__(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return counts of pixels, [3, 3], and the loss of each mini-batch."""

    def use_learning_rate(self) -> None:
        """Take note of numbers that changed in the optimiser."""


class Device(Protocol):
    """Makes everything that depends on the compute mode."""

    def make_optimizer(
        self, kind: OptimizerKind, parameters: Iterable[nn.Parameter], learning_rate: float
    ) -> torch.optim.Optimizer: ...

    def make_loader(
        self, dataset: Dataset[Any], batch_size: int, sampler: Sampler[int], *, training: bool
    ) -> Batches:
        """Return a loader of mini-batches, for training of all those that share an update.

        The sampler knows which events are this process'.
        """

    def make_training(
        self, module: nn.Module, optimizer: torch.optim.Optimizer
    ) -> TrainingStep: ...

    def make_inference(self, module: nn.Module) -> Callable[[Tensor], Tensor]:
        """Return something that does what `module` in evaluation mode does."""


MakeDevice = Callable[[Settings], Device]


@final
class PlainDevice:
    """Ordinary PyTorch on a CPU or a GPU, operator by operator.

    Raises:
        OptionsError: There is no GPU.
    """

    def __init__(self, settings: Settings) -> None:
        self._device = torch.device("cpu")
        if settings.run.compute_mode is ComputeMode.CUDA:
            if not torch.cuda.is_available():
                raise OptionsError(
                    "run.compute_mode is CUDA, but torch finds no GPU here; use CPU or IPU"
                )
            self._device = torch.device("cuda")
        self._accumulation = settings.mode.optimizer.gradient_accumulation
        self._num_workers = settings.data.num_workers
        options = Options(precision=settings.run.precision)  # type: ignore[arg-type]
        warn_if_slow(self._device, options, [])

    def make_optimizer(
        self, kind: OptimizerKind, parameters: Iterable[nn.Parameter], learning_rate: float
    ) -> torch.optim.Optimizer:
        return _make_optimizer(kind, parameters, learning_rate)

    def make_loader(
        self, dataset: Dataset[Any], batch_size: int, sampler: Sampler[int], *, training: bool
    ) -> Batches:
        combined = batch_size * (self._accumulation if training else 1)
        return TorchDataLoader(
            dataset,
            combined,
            sampler=sampler,
            num_workers=self._num_workers,
            persistent_workers=self._num_workers > 0,
        )

    def make_training(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> TrainingStep:
        return _PlainStep(module.to(self._device), optimizer, self._accumulation, self._device)

    def make_inference(self, module: nn.Module) -> Callable[[Tensor], Tensor]:
        module.to(self._device)

        def infer(images: Tensor) -> Tensor:
            with torch.no_grad():
                result: Tensor = module(images.to(self._device))
            return result.cpu()

        return infer


@final
class _PlainStep:
    """The loop as people write it: forward, backward, step."""

    def __init__(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        num_parts: int,
        device: torch.device,
    ) -> None:
        self._module = module
        self._optimizer = optimizer
        self._num_parts = num_parts
        self._device = device

    def compile(self, images: Tensor, labels: Tensor) -> float | None:
        return None

    def __call__(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        parts = zip(
            images.to(self._device).chunk(self._num_parts),
            labels.to(self._device).chunk(self._num_parts),
            strict=True,
        )
        total, losses = torch.zeros(3, 3, dtype=torch.int64), []
        self._optimizer.zero_grad()
        for part in parts:
            counts, loss = self._module(*part)
            (loss / self._num_parts).backward()
            losses.append(loss.detach().cpu())
            total += counts.cpu()
        self._optimizer.step()
        return total, torch.stack(losses)

    def use_learning_rate(self) -> None:
        """Nothing to do: torch's own step reads the optimiser."""


@final
class CompiledDevice:
    """A static program, compiled once; kept on disk for the next start."""

    # Says that `run.pipeline` counts; a device without this would ignore it.
    has_stages = True

    def __init__(self, settings: Settings) -> None:
        run = settings.run
        options = Options()
        world = current()
        if world is not None:
            options = world.options(options)
        self._options = options.replace(
            gradient_accumulation=settings.mode.optimizer.gradient_accumulation,
            output_mode=OutputMode.ALL,
            backend=options.backend if run.backend is None else Backend(run.backend),
            recompute=run.recompute,
            cache_dir=run.executable_dir,
            collective_timeout_s=run.collective_timeout_s,
            pipeline=[NETWORK + name for name in run.stages] or None,
        )
        self._num_workers = settings.data.num_workers
        # The precision itself is part of the network's forward.
        slow = self._options.replace(precision=run.precision)
        warn_if_slow(torch.device("cpu"), slow, [])

    def make_optimizer(
        self, kind: OptimizerKind, parameters: Iterable[nn.Parameter], learning_rate: float
    ) -> torch.optim.Optimizer:
        return _make_optimizer(kind, parameters, learning_rate)

    def make_loader(
        self, dataset: Dataset[Any], batch_size: int, sampler: Sampler[int], *, training: bool
    ) -> Batches:
        options = self._options if training else self._inference_options
        return DataLoader(
            options,
            dataset,
            batch_size,
            sampler=sampler,
            num_workers=self._num_workers,
            auto_distributed_partitioning=False,
        )

    def make_training(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> TrainingStep:
        return _ProgramStep(self.make_program(module, optimizer), optimizer)

    def make_program(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> Program:
        """Return the program that a training step calls."""
        return training_model(module, self._options, optimizer)

    def make_inference(self, module: nn.Module) -> Callable[[Tensor], Tensor]:
        return inference_model(module, self._inference_options, name="validation")

    @property
    def _inference_options(self) -> Options:
        # Every process judges by the whole network.
        return self._options.replace(gradient_accumulation=1, recompute=None, pipeline=None)


@final
class _ProgramStep:
    """All of an update in one call of a program."""

    def __init__(self, program: Program, optimizer: torch.optim.Optimizer) -> None:
        self._program = program
        self._optimizer = optimizer

    def compile(self, images: Tensor, labels: Tensor) -> float | None:
        self._program.compile(images, labels)
        return self._program.compilation_time

    def __call__(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        counts, losses = self._program(images, labels)
        return counts.reshape(-1, 3, 3).sum(dim=0).cpu(), losses.reshape(-1).cpu()

    def use_learning_rate(self) -> None:
        self._program.set_optimizer(self._optimizer)


def _make_optimizer(
    kind: OptimizerKind, parameters: Iterable[nn.Parameter], learning_rate: float
) -> torch.optim.Optimizer:
    if kind is OptimizerKind.rmsprop:
        return torch.optim.RMSprop(parameters, learning_rate, eps=_RMSPROP_EPS)
    if kind is OptimizerKind.sgd:
        return torch.optim.SGD(parameters, learning_rate, momentum=_SGD_MOMENTUM)
    return torch.optim.Adam(parameters, learning_rate)


def make_device(settings: Settings, make_ipu: MakeDevice = CompiledDevice) -> Device:
    """Return what `run.compute_mode` stands for."""
    if settings.run.compute_mode is ComputeMode.IPU:
        device = make_ipu(settings)
        if settings.run.stages and not getattr(device, "has_stages", False):
            number = len(settings.run.stages)
            raise OptionsError(
                "run.pipeline needs Torchkiln's own program, and this script makes another one; "
                f"start `torchrun --standalone --nproc-per-node {number} -m torchkiln bench "
                "cosmic` with the same settings instead"
            )
        return device
    return PlainDevice(settings)
