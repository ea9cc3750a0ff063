"""The modes train, inference and iotest; what a person is told about them, and the files."""

from __future__ import annotations

import dataclasses
import enum
import json
import sys
import time
from typing import Any

import torch

from torchkiln.apps._run_folder import run_folder
from torchkiln.apps.cosmic._data import (
    Share,
    ShuffledOrder,
    describe_events,
    load_held_out_events,
    load_training_events,
)
from torchkiln.apps.cosmic._devices import CompiledDevice, Device, MakeDevice, make_device
from torchkiln.apps.cosmic._judge import Judge, Judgement, progress
from torchkiln.apps.cosmic._pictures import write_curves, write_event_picture
from torchkiln.apps.cosmic._record import TrainingRecord, describe
from torchkiln.apps.cosmic._saving import checkpoint_plan, load_weights
from torchkiln.apps.cosmic._settings import ComputeMode, Settings
from torchkiln.apps.cosmic._tagger import Tagger, make_tagger
from torchkiln.apps.cosmic._trainer import train
from torchkiln.core import OptionsError, write_atomic
from torchkiln.core._progress import say
from torchkiln.core._room import check_room
from torchkiln.core._threads import on_all_cores
from torchkiln.datasets.cosmic import CosmicImages
from torchkiln.models import SegmentationMetrics
from torchkiln.report._results_file import checksum_of
from torchkiln.report._world_names import world_figures
from torchkiln.training._ranks import Ranks
from torchkiln.training._update_size import UpdateSize


def run_training(
    settings: Settings,
    make_ipu: MakeDevice = CompiledDevice,
    command: str = "python cosmic_tagger.py",
    ranks: Ranks | None = None,
) -> TrainingRecord:
    """Train, then judge with the trained weights and draw events.

    Several processes call it alike; rank 0 writes and prints.

    Raises:
        Interrupted: The person stopped it; see `train` for other errors.
    """
    ranks = ranks or Ranks()
    ranks.first_does("look at the folders", lambda: _check_run(settings, command))
    ranks.all_do("look at the compute mode", lambda: _check_several(settings, ranks.size))
    folder = ranks.first_enters(
        "claim the folder of the run",
        lambda: run_folder(
            settings.run.directory,
            name_flag="run.id",
            folder_flag="run.output_dir",
            is_same_run=lambda: settings.mode.resume,
        ),
    )
    with folder:
        return _train_and_draw(settings, make_ipu, command, ranks)


def _check_run(settings: Settings, command: str) -> None:
    _check_folder(settings)
    if settings.mode.checkpoint_epochs:
        checkpoint_plan(settings, command).check()  # before events are made, not after


def _check_several(settings: Settings, num_processes: int) -> None:
    mode = settings.run.compute_mode
    if num_processes > 1 and mode is not ComputeMode.IPU:
        raise OptionsError(
            f"run.compute_mode={mode.name} is plain PyTorch, which trains in one process, and "
            f"{num_processes} were started; use run.compute_mode=IPU, or start it without torchrun"
        )


def _train_and_draw(
    settings: Settings, make_ipu: MakeDevice, command: str, ranks: Ranks
) -> TrainingRecord:
    device, tagger, images, held_out = ranks.all_do(
        "get ready", lambda: _get_ready(settings, make_ipu, ranks)
    )
    judge = _make_judge(settings, tagger, device, held_out, ranks)
    record = train(settings, tagger, device, images, judge, say, command, ranks)
    judgement = judge.judge(settings.mode.num_pictures)
    ranks.first_does("write the results", lambda: _write_all(settings, judgement, record))
    return record


def _get_ready(
    settings: Settings, make_ipu: MakeDevice, ranks: Ranks
) -> tuple[Device, Tagger, CosmicImages, CosmicImages]:
    device = make_device(settings, make_ipu)
    tagger = make_tagger(settings)
    num_parameters = sum(parameter.numel() for parameter in tagger.parameters())
    say(f"{describe_events(settings.data)}; {num_parameters:,} parameters")
    if ranks.size > 1:
        accumulation = settings.mode.optimizer.gradient_accumulation
        size = UpdateSize(processes=ranks.num_copies, accumulation=accumulation)
        stages = f", each in {ranks.num_stages} stages" if ranks.num_stages > 1 else ""
        say(f"{size}{stages}")
    return device, tagger, _load("training", settings), _load("held-out", settings)


def run_inference(
    settings: Settings, make_ipu: MakeDevice = CompiledDevice, ranks: Ranks | None = None
) -> SegmentationMetrics:
    """Let the network of a checkpoint say the classes of held-out events; judge and draw them.

    Raises:
        CheckpointError: There is none, or it is that of another network.
    """
    ranks = ranks or Ranks()
    ranks.first_does("look at the folder", lambda: _check_folder(settings))
    device = make_device(settings, make_ipu)
    tagger = make_tagger(settings)
    tagger.load_state_dict(ranks.first_does("read the checkpoint", lambda: load_weights(settings)))
    held_out = ranks.all_do("load events", lambda: _load("held-out", settings))
    judge = _make_judge(settings, tagger, device, held_out, ranks)
    start = time.perf_counter()
    judgement = judge.judge(settings.mode.num_pictures)
    seconds = time.perf_counter() - start
    say(f"{len(held_out):,} events in {seconds:.1f} s, compiling included")
    ranks.first_does("write the results", lambda: _write_all(settings, judgement, None))
    return judgement.metrics


def measure_loading(
    settings: Settings, make_ipu: MakeDevice = CompiledDevice, ranks: Ranks | None = None
) -> float:
    """Read one epoch of training batches and throw them away; return images per second."""
    ranks = ranks or Ranks()
    device = make_device(settings, make_ipu)
    images = _load("training", settings)
    size = settings.run.minibatch_size
    share = Share(size, ranks.rank, ranks.size)
    num_images = share.round * settings.mode.optimizer.gradient_accumulation
    order = ShuffledOrder(len(images), num_images, settings.run.seed, share)
    loader = device.make_loader(images, size, order, training=True)
    start, own_count, own_total = time.perf_counter(), 0, torch.zeros(())
    for signals, _ in progress(loader, "Reading", order.num_batches):
        own_count += len(signals)
        own_total += signals.sum()
    told = ranks.gather((own_count, float(own_total), time.perf_counter() - start))
    counts, totals, times = zip(*told, strict=True)
    count, total, seconds = sum(counts), sum(totals), max(times)
    rate = float(count / seconds)
    if ranks.is_first:
        sys.stdout.write(
            f"read {count:,} images in {seconds:.2f} s: {rate:.1f} images/s, mean signal of an "
            f"image {total / count:,.0f}\n"
        )
    return rate


def _check_folder(settings: Settings) -> None:
    """Raise if results could not be written, before there are some."""
    check_room(settings.run.directory, "the results", "choose another run.output_dir")


def _make_judge(
    settings: Settings, tagger: Tagger, device: Device, images: CosmicImages, ranks: Ranks
) -> Judge:
    size, odds = settings.run.minibatch_size, settings.mode.background_odds
    return Judge(tagger, device, images, size, odds, ranks)


def _write_all(settings: Settings, judgement: Judgement, training: TrainingRecord | None) -> None:
    """Draw events and curves, write the figures, tell them."""
    directory = settings.run.directory
    for event in judgement.shown:
        write_event_picture(
            directory / f"event_{event.number}.png",
            event.image.numpy(),
            event.truth.numpy(),
            event.prediction.numpy(),
            f"Event {event.number}",
        )
    if training is not None:
        write_curves(directory / "curves.png", training.losses, training.epochs)
    _write_results(settings, judgement.metrics, training)
    _tell_result(settings, judgement.metrics)


def _load(which: str, settings: Settings) -> CosmicImages:
    start = time.perf_counter()
    load = load_training_events if which == "training" else load_held_out_events
    with on_all_cores():
        images = load(settings.data)
    say(f"{len(images):,} {which} events ready in {time.perf_counter() - start:.1f} s")
    return images


def _write_results(
    settings: Settings, metrics: SegmentationMetrics, training: TrainingRecord | None
) -> None:
    record: dict[str, Any] = {
        "settings": dataclasses.asdict(settings),
        "metrics": dataclasses.asdict(metrics),
    }
    if training is not None:
        record["epochs"] = [dataclasses.asdict(epoch) for epoch in training.epochs]
        record["steps"] = {
            "loss": training.losses,
            "non_background_accuracy": training.accuracies,
        }
    if training is not None and training.world is not None:
        record["world"] = world_figures(training.world, "images")
    plain = json.loads(json.dumps(record, default=_to_plain))
    text = json.dumps({**plain, "sha256": checksum_of(plain)}, indent=1)
    settings.run.directory.mkdir(parents=True, exist_ok=True)
    name = "results.json" if training is not None else "inference.json"
    write_atomic(settings.run.directory / name, text + "\n")


def _to_plain(value: Any) -> Any:
    return value.name if isinstance(value, enum.Enum) else str(value)


def _tell_result(settings: Settings, metrics: SegmentationMetrics) -> None:
    sys.stdout.write(f"{describe(metrics)}\n")
    say(f"pictures and figures are in {settings.run.directory}")
