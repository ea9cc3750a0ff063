"""One experiment: settings -> molecules, model, loaders, optimiser -> training -> report."""

from __future__ import annotations

import dataclasses
import datetime
import json
import re
from pathlib import Path
from typing import Any

import torch

from torchkiln.apps.schnet._advice import make_advice
from torchkiln.apps.schnet._batches import LoaderTiming, time_dataloader
from torchkiln.apps.schnet._job import TrainingJob, make_checkpoint_plan
from torchkiln.apps.schnet._loaders import batch_spec, make_loader
from torchkiln.apps.schnet._optimizer import make_adam
from torchkiln.apps.schnet._program_options import training_options
from torchkiln.apps.schnet._report_folder import report_folder
from torchkiln.apps.schnet._resumed_settings import doubtful_flags, keep_target_form, read_saved
from torchkiln.apps.schnet._settings import Settings
from torchkiln.apps.schnet._startup import StartupClock
from torchkiln.apps.schnet._target_form import asked_form, choose_readout
from torchkiln.apps.schnet._trainer import train
from torchkiln.core import Options, OptionsError, span
from torchkiln.core._progress import is_quiet, is_watched, say
from torchkiln.core._room import check_room
from torchkiln.datasets import MoleculeSet, load_qm9
from torchkiln.datasets.molecules._targets import UnknownTarget
from torchkiln.graphs import BatchSpec, FixedSizeLoader
from torchkiln.models import MoleculeRegression, SchNet
from torchkiln.report import (
    MonitorGroup,
    QuietMonitor,
    RunResult,
    StepRecord,
    make_monitor,
    print_record,
    print_summary,
    publish,
)
from torchkiln.report._rows import status_text
from torchkiln.training._checkpoint_plan import CheckpointPlan
from torchkiln.training._evaluation import inference_options
from torchkiln.training._machine import describe_machine


def run_experiment(
    settings: Settings, clock: StartupClock | None = None, command: str = "python bench.py"
) -> RunResult:
    """Train as `settings` say, write the report, and print the closing table.

    Args:
        settings: What to do.
        clock: Running since the command was given. `machine["startup_seconds"]` of the result is
            what it shows at the first step.
        command: How the program is called, for hints that can be pasted.

    Raises:
        TorchkilnError: Something that was asked for cannot be done; nothing was trained then. A
            training that fails or is interrupted returns a result that says so.
    """
    clock = clock or StartupClock()
    checkpoint = checkpoint_plan(settings, command)
    if checkpoint is not None:
        checkpoint.check()  # before minutes of preparation, not after
    _check_folders(settings)
    with report_folder(settings, run_name(settings)) as directory:
        # A run that is continued finds its report by the name that is kept in the checkpoint.
        named = dataclasses.replace(settings, run_name=directory.name)
        return _train_and_report(named, checkpoint, directory, clock)


def _train_and_report(
    settings: Settings, checkpoint: CheckpointPlan | None, directory: Path, clock: StartupClock
) -> RunResult:
    saved = read_saved(settings) if settings.resume else None
    built = settings if saved is None else keep_target_form(settings, saved)
    with span("data", "load dataset"):
        dataset = load_dataset(built)
    clock.lap("dataset")
    options = training_options(settings)
    say(f"{dataset.name}: {_count(dataset)}")
    _mention_unused_labels(dataset)
    job = make_job(built, dataset, options, checkpoint, clock)
    job = dataclasses.replace(job, settings=settings.to_dict())
    if settings.verbose:
        say(f"{job.train_loader}\n{job.train_loader.plan}\n{options}")
    say(f"report in {directory}, executables in {options.cache_dir}")
    monitor = make_monitor(
        directory,
        unit=dataset.unit,
        counted="molecules",
        progress="none" if is_quiet() else "auto",
        use_wandb=settings.bench.use_wandb,
        use_tensorboard=settings.bench.use_tensorboard,
        project=settings.project,
        run_name=directory.name,
        settings=settings.to_dict(),
    )
    startup = _StartupMonitor(clock, is_shown=settings.verbose)
    try:
        result = train(job, MonitorGroup([startup, *monitor.monitors]))
        result.machine["startup_seconds"] = startup.seconds
        if result.is_beaten:
            judged = result.judged
            advice = make_advice(
                settings,
                dataset,
                num_updates=len(result.steps),
                is_baseline_exact=judged is not None and judged.is_baseline_exact,
            )
            result = dataclasses.replace(result, advice=advice)
        monitor.result(result)
    finally:
        monitor.close()
    page = publish(result, directory, show=print_record if settings.json else print_summary)
    if result.is_beaten:
        say(f"this model is {status_text(result).removeprefix('finished, but ')}. {result.advice}")
    say(f"report: {page}")
    return result


def measure_loading(settings: Settings) -> list[LoaderTiming]:
    """Make the batches of all epochs without training on them; print how fast that goes."""
    dataset = load_dataset(settings)
    wanted = settings.dataset_factory
    loader = make_loader(
        dataset,
        "train",
        batch_spec(dataset, wanted),
        options=training_options(settings),
        settings=wanted,
        shuffle=True,
        seed=settings.bench.seed,
        num_workers=settings.loader_workers,
    )
    say(f"{loader}, {settings.loader_workers} workers")
    timings = time_dataloader(loader, num_epochs=settings.bench.num_epochs)
    if settings.json:
        print(json.dumps([timing.to_record() for timing in timings]))  # noqa: T201
        return timings
    for epoch, timing in enumerate(timings):
        print(  # noqa: T201
            f"epoch {epoch + 1:>3}  {timing.molecules_per_s:>12,.0f} molecules/s  "
            f"{timing.batches_per_s:>8,.1f} batches/s  {timing.seconds:.2f} s"
        )
    return timings


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


def checkpoint_plan(settings: Settings, command: str = "python bench.py") -> CheckpointPlan | None:
    """Return where to save; `--resume` alone means `--checkpoint` too."""
    if not (settings.checkpoint or settings.resume):
        return None
    return make_checkpoint_plan(
        root=settings.checkpoint_dir,
        model_name=settings.model_name,
        every_epochs=settings.checkpoint_epochs,
        resume=settings.resume,
        command=command,
        doubtful=_doubtful_flags(settings),
    )


def _doubtful_flags(settings: Settings) -> tuple[str, ...]:
    saved = read_saved(settings) if settings.resume else None
    return () if saved is None else tuple(doubtful_flags(settings, saved))


def run_name(settings: Settings) -> str:
    """Return the name that was given, or one made of dataset, target, batches and the time."""
    if settings.run_name is not None:
        return settings.run_name
    wanted = settings.dataset_factory
    data = (
        settings.bench.factory
        if wanted.root is None
        else _in_file_names(wanted.root.resolve().stem)
    )
    form = "packed" if wanted.use_packing else "padded"
    loop = ["eager"] if settings.bench.is_plain_eager else []
    now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    return "-".join([data, _in_file_names(settings.target), form, *loop, now])


def _in_file_names(name: str) -> str:
    """Return a name without what shells and file systems stumble over."""
    return re.sub(r"[^\w.+]+", "_", name)[:60] or "molecules"


class _StartupMonitor(QuietMonitor):
    """Reads the clock when the first step is done; tells a person who wants to know."""

    def __init__(self, clock: StartupClock, *, is_shown: bool) -> None:
        self._clock = clock
        self._is_shown = is_shown
        # None: no step was made.
        self.seconds: dict[str, float] | None = None

    def start(self, total_epochs: int, first_epoch: int) -> None:
        self._clock.lap("programs")

    def step(self, record: StepRecord) -> None:
        if self.seconds is None:
            self._clock.lap("first step")
            self.seconds = self._clock.to_record()
            if self._is_shown:
                say(str(self._clock))


def _check_folders(settings: Settings) -> None:
    """Raise if a folder of results cannot be written: after hours of training is too late."""
    wanted = [(settings.output_dir, "the report", "--output_dir")]
    if settings.bench.profile_dir is not None:
        wanted.append((settings.bench.profile_dir, "the profile", "--profile_dir"))
    if settings.checkpoint or settings.resume:
        wanted.append((settings.checkpoint_dir, "the checkpoint", "--checkpoint_dir"))
    for folder, what, flag in wanted:
        check_room(folder, what, f"choose another {flag}")


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


def _mention_unused_labels(dataset: MoleculeSet) -> None:
    """Say what a user's file has besides the target: nobody should think that it was learnt."""
    molecules = dataset.molecules
    labels = [name for name in molecules.targets if name != dataset.target]
    if molecules.units or not (labels or molecules.unread):
        return  # everybody knows what QM9 has
    names = ", ".join([*labels, *molecules.unread])
    say(f"{dataset.target} is learnt; not used are these labels of the file: {names}")


def _count(dataset: MoleculeSet) -> str:
    return ", ".join(f"{len(indices):,} {split}" for split, indices in dataset.splits.items())
