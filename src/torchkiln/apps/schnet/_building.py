"""From settings to a job: molecules, model, loaders, optimiser."""

from __future__ import annotations

from typing import Any

import torch

from torchkiln.apps.schnet._job import TrainingJob
from torchkiln.apps.schnet._loaders import batch_spec, make_loader
from torchkiln.apps.schnet._optimizer import make_adam
from torchkiln.apps.schnet._settings import Settings
from torchkiln.apps.schnet._startup import StartupClock
from torchkiln.apps.schnet._target_form import asked_form, choose_readout
from torchkiln.core import Options, OptionsError
from torchkiln.core._progress import is_watched, say
from torchkiln.datasets import MoleculeSet, load_qm9
from torchkiln.datasets.molecules._targets import UnknownTarget
from torchkiln.graphs import BatchSpec, FixedSizeLoader
from torchkiln.models import MoleculeRegression, SchNet
from torchkiln.training._checkpoint_plan import CheckpointPlan
from torchkiln.training._evaluation import inference_options
from torchkiln.training._machine import describe_machine


def load_dataset(settings: Settings) -> MoleculeSet:
    """Return the molecules with their graphs, splits and transformed target."""
    wanted, form = settings.dataset_factory, asked_form(settings)
    common: dict[str, Any] = {
        "root": wanted.root,
        "target": settings.target,
        "k": wanted.k,
        "cutoff_angstrom": wanted.cutoff,
        "splits": wanted.splits if isinstance(wanted.splits, str) else tuple(wanted.splits),
        "seed": wanted.seed,
        "references": form.references,
        "per_atom": form.per_atom,
        "standardize": wanted.use_standardized_energy,
        "unit": wanted.unit,
        "limit": settings.limit,
        "progress": is_watched(),
    }
    if settings.bench.factory == "water":
        from torchkiln.datasets.water import load_water

        return load_water(settings.bench.water_dataset, **common)
    try:
        return load_qm9(**common)
    except UnknownTarget as error:
        if wanted.target is not None or not error.known:
            raise
        # Nobody typed U0: it is what QM9 would be trained on.
        names = ", ".join(error.known)
        raise OptionsError(
            f"say with --target what to learn of {wanted.root}; it has {names}"
        ) from None


def make_job(
    settings: Settings,
    dataset: MoleculeSet,
    options: Options,
    checkpoint: CheckpointPlan | None = None,
    clock: StartupClock | None = None,
) -> TrainingJob:
    """Build everything that the trainer needs; the same seed gives the same weights."""
    clock = clock or StartupClock()
    bench, wanted = settings.bench, settings.dataset_factory
    spec = batch_spec(dataset, wanted)
    clock.lap("plan")
    arguments = model_arguments(settings, dataset)
    torch.manual_seed(bench.seed)
    regression = MoleculeRegression(SchNet(**arguments), loss=bench.loss)
    if options.device is not None:
        regression.to(options.device)
    optimizer = make_adam(regression.parameters(), bench.learning_rate)
    clock.lap("model")
    train_loader = make_loader(
        dataset,
        "train",
        spec,
        options=options,
        settings=wanted,
        shuffle=True,
        seed=bench.seed,
        num_workers=settings.loader_workers,
    )
    job = TrainingJob(
        regression=regression,
        optimizer=optimizer,
        dataset=dataset,
        train_loader=train_loader,
        validation_loader=_evaluation_loader(settings, dataset, "validation", spec, options),
        test_loader=_evaluation_loader(settings, dataset, "test", spec, options),
        options=options,
        num_epochs=bench.num_epochs,
        eager=bench.is_plain_eager,
        scheduler=_scheduler(settings, optimizer),
        ema_decay=bench.ema_decay,
        synthetic_data=bench.synthetic_data,
        profile_dir=bench.profile_dir,
        checkpoint=checkpoint,
        model_arguments=arguments,
        fixed={"loss": bench.loss, "seed": bench.seed, "use_packing": wanted.use_packing},
        settings=settings.to_dict(),
        model_description={"name": "SchNet", **arguments, "loss": bench.loss},
        machine=describe_machine(),
    )
    clock.lap("plan")
    return job


def model_arguments(settings: Settings, dataset: MoleculeSet) -> dict[str, Any]:
    """Return the keyword arguments of `SchNet`, in JSON types."""
    model = settings.model
    # Plain eager PyTorch is what others run: it evaluates the filter network for every pair.
    auto = "exact" if settings.bench.is_plain_eager else "auto"
    return {
        "hidden_channels": model.num_features,
        "num_filters": model.num_filters or model.num_features,
        "num_interactions": model.num_interactions,
        "num_gaussians": model.num_gaussians,
        "cutoff": settings.dataset_factory.cutoff,
        "readout": choose_readout(settings, dataset),
        "filter": auto if model.filter == "auto" else model.filter,
    }


def _evaluation_loader(
    settings: Settings, dataset: MoleculeSet, split: str, spec: BatchSpec, options: Options
) -> FixedSizeLoader | None:
    if not settings.validation:
        return None
    if not len(dataset.splits[split]):
        say(f"the {split} split is empty, so there is nothing to evaluate on it")
        return None
    return make_loader(
        dataset,
        split,
        spec,
        options=inference_options(options),
        settings=settings.dataset_factory,
    )


def _scheduler(
    settings: Settings, optimizer: torch.optim.Optimizer
) -> torch.optim.lr_scheduler.LRScheduler | None:
    decay = settings.bench.learning_rate_decay
    if decay == 1.0:
        return None
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=decay)
