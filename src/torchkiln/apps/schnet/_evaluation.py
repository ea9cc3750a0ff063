"""Predictions for a whole split, in physical units, beside the truth."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from torchkiln.apps.schnet._batches import arguments_of, count_real
from torchkiln.apps.schnet._filter_tables import BakedRegression, tabulated
from torchkiln.core import Backend, Options, OutputMode
from torchkiln.datasets import MoleculeSet
from torchkiln.datasets.molecules._targets import element_predictions
from torchkiln.graphs import BatchSpec, FixedSizeLoader
from torchkiln.models import MoleculeRegression
from torchkiln.report import ValidationResult
from torchkiln.runtime import Program, inference_model
from torchkiln.training._batches import peek
from torchkiln.training._evaluation import evaluating, in_turn
from torchkiln.training._ranks import Ranks
from torchkiln.training._stopping import Check, Stopping


class _Prepared(NamedTuple):
    """A program for one size of batch, and the copy of the network that it runs, if it is one."""

    options: Options
    spec: BatchSpec
    program: Program
    baked: BakedRegression | None


class _Predicted(NamedTuple):
    """What one batch gave: which molecules, their predictions, their losses in all."""

    indices: Tensor
    predictions: Tensor
    loss_sum: float


class Evaluation(NamedTuple):
    """Errors in physical units, and the loss that training would see."""

    result: ValidationResult
    loss: float


@final
class Evaluator:
    """Runs a module over loaders, compiled once for each size of batch.

    Args:
        module: The `MoleculeRegression` with the weights to evaluate, live.
        dataset: What the loaders read views of.
        eager: Run plain eager PyTorch instead of compiled programs.
        profile_dir: Where programs write reports of their time and memory; None: no reports.
    """

    def __init__(
        self,
        module: nn.Module,
        dataset: MoleculeSet,
        *,
        eager: bool = False,
        profile_dir: Path | None = None,
    ) -> None:
        self._module = module
        self._dataset = dataset
        self._eager = eager
        self._profile_dir = None if eager else profile_dir
        self._prepared: list[_Prepared] = []
        self._references: dict[bytes, NDArray[np.float64]] = {}

    def compile(self, loader: FixedSizeLoader, ranks: Ranks) -> float:
        """Get ready for the batches of `loader`; return the seconds that took.

        Args:
            loader: Of any split.
            ranks: The processes that train together.
        """
        start = time.perf_counter()
        program = self._prepare(loader).program
        if not program.is_compiled and not self._eager:
            loader.set_epoch(0)
            batch, _ = peek(iter(loader))  # by all processes at once: they compare their loaders
            ranks.each_host_once("compile the validation", lambda: self._compile(program, batch))
        return time.perf_counter() - start

    def _compile(self, program: Program, batch: Any) -> None:
        with evaluating(self._module):
            program.compile(**arguments_of(batch))

    def finish(self) -> None:
        """Take note that nothing else will be predicted."""
        for prepared in self._prepared:
            prepared.program.finish_profile()

    def evaluate(self, loader: FixedSizeLoader, stopping: Stopping | None = None) -> Evaluation:
        """Predict every molecule of `loader`; of several processes, each predicts its share.

        Args:
            loader: Of any split.
            stopping: Divides the work; None: there is one process, which nobody stops.
        """
        prepared = self._prepare(loader)
        if prepared.baked is not None:
            prepared.baked.refresh()
        loader.set_epoch(0)
        stopping = stopping or Stopping(Ranks())
        with evaluating(self._module):
            parts = stopping.share(
                "the predictions", lambda check: self._predict(prepared, loader, check)
            )
        batches = in_turn(parts)
        num_molecules = sum(len(batch.indices) for batch in batches)
        loss = sum(batch.loss_sum for batch in batches) / max(num_molecules, 1)
        indices = torch.cat([batch.indices for batch in batches])
        predictions = torch.cat([batch.predictions for batch in batches])
        return Evaluation(self._compare(indices, predictions), loss)

    def _predict(
        self, prepared: _Prepared, loader: FixedSizeLoader, check: Check
    ) -> list[_Predicted]:
        num_parts = loader.options.combined_factor
        found = []
        for batch in loader:
            prediction, *_, losses = prepared.program(**arguments_of(batch))
            prediction, losses = prediction.cpu(), losses.cpu()
            mask: Tensor = batch.graph_mask
            counts = count_real(batch, num_parts)
            found.append(
                _Predicted(
                    batch.index.reshape(-1)[mask],
                    prediction.reshape(-1)[mask].double(),
                    float((losses.reshape(-1).double() * counts).sum()),
                )
            )
            check()
        return found

    def _prepare(self, loader: FixedSizeLoader) -> _Prepared:
        # Without a seed: making this program must not disturb the training's random numbers.
        options = loader.options.replace(
            output_mode=OutputMode.ALL, random_seed=None, profile_dir=self._profile_dir
        )
        if self._eager:
            options = options.replace(backend=Backend.EAGER)
        for known in self._prepared:
            if known.options == options and known.spec == loader.spec:
                return known
        module, baked = self._module, None
        model = tabulated(module, loader.spec)
        if model is not None and isinstance(module, MoleculeRegression):
            baked = BakedRegression(module, model)
            module = baked.module
        program = inference_model(module, options, name="validation")
        prepared = _Prepared(options, loader.spec, program, baked)
        self._prepared.append(prepared)
        return prepared

    def _compare(self, indices: Tensor, predictions: Tensor) -> ValidationResult:
        """Undo the transform, in the order of the dataset."""
        order = torch.argsort(indices)
        chosen = indices[order].numpy()
        data = self._dataset
        return ValidationResult.compare(
            data.restore(predictions[order].numpy(), chosen),
            data.values[chosen],
            reference=self._reference(chosen),
        )

    def _reference(self, chosen: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return what the formulas of these molecules alone predict; computed once for a split."""
        key = chosen.tobytes()
        if key not in self._references:
            data = self._dataset
            self._references[key] = element_predictions(
                data.molecules, data.target, data.splits["train"], chosen
            )
        return self._references[key]
