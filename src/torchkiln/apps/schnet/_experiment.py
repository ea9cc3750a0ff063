"""One experiment: settings -> molecules, model, loaders, optimiser -> training -> report."""

from __future__ import annotations

import dataclasses
import datetime
import json
import re
from pathlib import Path

from torchkiln.apps.schnet._advice import make_advice
from torchkiln.apps.schnet._batches import LoaderTiming, time_dataloader
from torchkiln.apps.schnet._building import load_dataset, make_job
from torchkiln.apps.schnet._job import make_checkpoint_plan
from torchkiln.apps.schnet._loaders import batch_spec, make_loader
from torchkiln.apps.schnet._program_options import training_options
from torchkiln.apps.schnet._report_folder import report_folder
from torchkiln.apps.schnet._resumed_settings import doubtful_flags, keep_target_form, read_saved
from torchkiln.apps.schnet._settings import Settings
from torchkiln.apps.schnet._startup import StartupClock
from torchkiln.apps.schnet._trainer import train
from torchkiln.core import Options, span
from torchkiln.core._progress import is_quiet, say
from torchkiln.core._room import check_room
from torchkiln.datasets import MoleculeSet
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
from torchkiln.training._ranks import Ranks


def run_experiment(
    settings: Settings,
    clock: StartupClock | None = None,
    command: str = "python bench.py",
    ranks: Ranks | None = None,
) -> RunResult:
    """Train as `settings` say, write the report, and print the closing table.

    Several processes call it alike; rank 0 writes and prints.

    Args:
        settings: What to do.
        clock: Running since the command was given. `machine["startup_seconds"]` of the result is
            what it shows at the first step.
        command: How the program is called, for hints that can be pasted.
        ranks: The processes that train together; None: there is one.

    Raises:
        TorchkilnError: Something that was asked for cannot be done; nothing was trained then. A
            training that fails or is interrupted returns a result that says so.
    """
    clock, ranks = clock or StartupClock(), ranks or Ranks()
    # Before minutes of preparation, not after.
    checkpoint = ranks.first_does("look at the folders", lambda: _check_folders(settings, command))
    folder = ranks.first_enters(
        "claim the folder of the report", lambda: report_folder(settings, run_name(settings))
    )
    with folder as directory:
        # A run that is continued finds its report by the name that is kept in the checkpoint.
        named = dataclasses.replace(settings, run_name=directory.name)
        return _train_and_report(named, checkpoint, directory, clock, ranks)


def _train_and_report(
    settings: Settings,
    checkpoint: CheckpointPlan | None,
    directory: Path,
    clock: StartupClock,
    ranks: Ranks,
) -> RunResult:
    built = ranks.first_does("read what was saved", lambda: _with_saved_form(settings))
    with span("data", "load dataset"):
        dataset = ranks.each_host_once("load the molecules", lambda: load_dataset(built))
    clock.lap("dataset")
    options = ranks.all_do("set options", lambda: ranks.options(training_options(settings)))
    say(f"{dataset.name}: {_count(dataset)}")
    _mention_unused_labels(dataset)
    if ranks.size > 1:
        say(_describe_replicas(options))
    job = ranks.all_do(
        "make model and loaders", lambda: make_job(built, dataset, options, checkpoint, clock)
    )
    job = dataclasses.replace(job, settings=settings.to_dict())
    if settings.verbose:
        say(f"{job.train_loader}\n{job.train_loader.plan}\n{options}")
    say(f"report in {directory}, executables in {options.cache_dir}")

    def make_own_monitor() -> MonitorGroup:
        if not ranks.is_first:
            return MonitorGroup([])
        return make_monitor(
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

    monitor = ranks.all_do("begin to watch", make_own_monitor)
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
    ranks.first_does("write the report", lambda: _publish(settings, result, directory))
    return result


def _publish(settings: Settings, result: RunResult, directory: Path) -> None:
    page = publish(result, directory, show=print_record if settings.json else print_summary)
    if result.is_beaten:
        say(f"this model is {status_text(result).removeprefix('finished, but ')}. {result.advice}")
    say(f"report: {page}")


def _with_saved_form(settings: Settings) -> Settings:
    """Return the settings; of a run that is continued, with the form that its target has."""
    saved = read_saved(settings) if settings.resume else None
    return settings if saved is None else keep_target_form(settings, saved)


def _describe_replicas(options: Options) -> str:
    processes, replicas = options.num_processes, options.replication_factor
    return (
        f"{processes} processes with {replicas} replica{'s' * (replicas > 1)} each: "
        f"{processes * replicas} replicas, {options.total_micro_batches_per_update} mini-batches "
        "in an update"
    )


def measure_loading(settings: Settings, ranks: Ranks | None = None) -> list[LoaderTiming]:
    """Make the batches of all epochs without training on them; print how fast that goes."""
    ranks = ranks or Ranks()
    dataset = ranks.each_host_once("load the molecules", lambda: load_dataset(settings))
    wanted = settings.dataset_factory
    loader = make_loader(
        dataset,
        "train",
        batch_spec(dataset, wanted),
        options=ranks.options(training_options(settings)),
        settings=wanted,
        shuffle=True,
        seed=settings.bench.seed,
        num_workers=settings.loader_workers,
    )
    say(f"{loader}, {settings.loader_workers} workers")
    by_rank = ranks.gather(time_dataloader(loader, num_epochs=settings.bench.num_epochs))
    timings = [LoaderTiming.of_all(epoch) for epoch in zip(*by_rank, strict=True)]
    if not ranks.is_first:
        return timings
    if settings.json:
        print(json.dumps([timing.to_record() for timing in timings]))  # noqa: T201
        return timings
    for epoch, timing in enumerate(timings):
        print(  # noqa: T201
            f"epoch {epoch + 1:>3}  {timing.molecules_per_s:>12,.0f} molecules/s  "
            f"{timing.batches_per_s:>8,.1f} batches/s  {timing.seconds:.2f} s"
        )
    return timings


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


def _check_folders(settings: Settings, command: str) -> CheckpointPlan | None:
    """Return where to save; raise if that or another folder of results cannot be written."""
    checkpoint = checkpoint_plan(settings, command)
    if checkpoint is not None:
        checkpoint.check()
    wanted = [(settings.output_dir, "the report", "--output_dir")]
    if settings.bench.profile_dir is not None:
        wanted.append((settings.bench.profile_dir, "the profile", "--profile_dir"))
    if settings.checkpoint or settings.resume:
        wanted.append((settings.checkpoint_dir, "the checkpoint", "--checkpoint_dir"))
    for folder, what, flag in wanted:
        check_room(folder, what, f"choose another {flag}")
    return checkpoint


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
