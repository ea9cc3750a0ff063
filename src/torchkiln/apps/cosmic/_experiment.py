"""The modes: train, inference, iotest, fit; what a person is told about them, and the files."""

from __future__ import annotations

import dataclasses
import enum
import json
import sys
import time
from typing import Any, final

import torch
from torch import Tensor

from torchkiln.apps._run_folder import run_folder
from torchkiln.apps.cosmic._data import (
    ShuffledOrder,
    describe_events,
    load_held_out_events,
    load_training_events,
)
from torchkiln.apps.cosmic._devices import CompiledDevice, Device, MakeDevice, make_device
from torchkiln.apps.cosmic._judge import Judge, progress
from torchkiln.apps.cosmic._pictures import write_curves, write_event_picture
from torchkiln.apps.cosmic._record import TrainingRecord, describe
from torchkiln.apps.cosmic._saving import checkpoint_plan, load_network
from torchkiln.apps.cosmic._settings import ComputeMode, Settings
from torchkiln.apps.cosmic._tagger import Tagger, TaggerWithLoss, make_tagger
from torchkiln.apps.cosmic._trainer import train
from torchkiln.core import OptionsError, write_atomic
from torchkiln.core._progress import say
from torchkiln.core._room import check_room
from torchkiln.core._threads import on_all_cores
from torchkiln.datasets.cosmic import NUM_PLANES, NUM_TICKS, NUM_WIRES, CosmicImages
from torchkiln.models import SegmentationMetrics
from torchkiln.report._memory_verdict import available_bytes, print_memory_report
from torchkiln.report._results_file import checksum_of


def run_training(
    settings: Settings,
    make_ipu: MakeDevice = CompiledDevice,
    command: str = "python cosmic_tagger.py",
) -> TrainingRecord:
    """Train, then judge with the trained weights and draw events.

    Raises:
        Interrupted: The person stopped it; see `train` for other errors.
    """
    _check_folder(settings)
    if settings.mode.checkpoint_epochs:
        checkpoint_plan(settings, command).check()  # before events are made, not after
    folder = run_folder(
        settings.run.directory,
        name_flag="run.id",
        folder_flag="run.output_dir",
        is_same_run=lambda: settings.mode.resume,
    )
    with folder:
        return _train_and_draw(settings, make_ipu, command)


def _train_and_draw(settings: Settings, make_ipu: MakeDevice, command: str) -> TrainingRecord:
    device = make_device(settings, make_ipu)
    tagger = make_tagger(settings)
    num_parameters = sum(parameter.numel() for parameter in tagger.parameters())
    say(f"{describe_events(settings.data)}; {num_parameters:,} parameters")
    images, held_out = _load("training", settings), _load("held-out", settings)
    judge = _make_judge(settings, tagger, device, held_out)
    record = train(settings, tagger, device, images, judge, say, command)
    artist = _Artist(settings)
    metrics = judge.judge(look=artist.draw)
    write_curves(settings.run.directory / "curves.png", record.losses, record.epochs)
    _write_results(settings, metrics, record)
    _tell_result(settings, metrics)
    return record


def run_inference(settings: Settings, make_ipu: MakeDevice = CompiledDevice) -> SegmentationMetrics:
    """Let the network of a checkpoint say the classes of held-out events; judge and draw them.

    Raises:
        CheckpointError: There is none, or it is that of another network.
    """
    _check_folder(settings)
    device = make_device(settings, make_ipu)
    tagger = make_tagger(settings)
    load_network(settings, tagger)
    held_out = _load("held-out", settings)
    judge = _make_judge(settings, tagger, device, held_out)
    artist = _Artist(settings)
    start = time.perf_counter()
    metrics = judge.judge(look=artist.draw)
    seconds = time.perf_counter() - start
    say(f"{len(held_out):,} events in {seconds:.1f} s, compiling and drawing included")
    _write_results(settings, metrics, None)
    _tell_result(settings, metrics)
    return metrics


def measure_loading(settings: Settings, make_ipu: MakeDevice = CompiledDevice) -> float:
    """Read one epoch of training batches and throw them away; return images per second."""
    device = make_device(settings, make_ipu)
    images = _load("training", settings)
    size = settings.run.minibatch_size
    num_images = size * settings.mode.optimizer.gradient_accumulation
    order = ShuffledOrder(len(images), num_images, settings.run.seed)
    loader = device.make_loader(images, size, order, training=True)
    start, count, total = time.perf_counter(), 0, torch.zeros(())
    for signals, _ in progress(loader, "Reading", order.num_batches):
        count += len(signals)
        total += signals.sum()
    seconds = time.perf_counter() - start
    rate = count / seconds
    sys.stdout.write(
        f"read {count:,} images in {seconds:.2f} s: {rate:.1f} images/s, mean signal of an image "
        f"{float(total) / count:,.0f}\n"
    )
    return rate


def foretell_memory(settings: Settings, make_ipu: MakeDevice = CompiledDevice) -> bool:
    """Say how much memory a training step needs, and what helps if that is too much.

    Returns:
        Whether that is there.

    Raises:
        OptionsError: The compute mode has no static program, whose memory could be foretold.
    """
    if settings.run.compute_mode is not ComputeMode.IPU:
        raise OptionsError(
            f"mode=fit needs run.compute_mode=IPU: the memory of plain PyTorch "
            f"({settings.run.compute_mode.value}) is only known after it ran"
        )
    device = CompiledDevice(settings)
    optimizer = settings.mode.optimizer
    module = TaggerWithLoss(make_tagger(settings), optimizer.loss_balance_scheme).train()
    size = settings.run.minibatch_size * optimizer.gradient_accumulation
    height, width = (side // settings.data.downsample for side in (NUM_TICKS, NUM_WIRES))
    images = torch.zeros(size, NUM_PLANES, height, width)
    labels = torch.zeros_like(images, dtype=torch.uint8)
    say(f"planning a step with {size} images of 3 planes of {height} x {width}: about a minute")
    rule = device.make_optimizer(optimizer.name, module.parameters(), optimizer.learning_rate)
    report = device.make_program(module, rule).memory_report(images, labels)
    return print_memory_report(report, available_bytes())


def _check_folder(settings: Settings) -> None:
    """Raise if results could not be written, before there are some."""
    check_room(settings.run.directory, "the results", "choose another run.output_dir")


def _make_judge(settings: Settings, tagger: Tagger, device: Device, images: CosmicImages) -> Judge:
    return Judge(tagger, device, images, settings.run.minibatch_size, settings.mode.background_odds)


@final
class _Artist:
    """Draws the first events that it is shown."""

    def __init__(self, settings: Settings) -> None:
        self._directory = settings.run.directory
        self._number = settings.mode.num_pictures

    def draw(self, number: int, image: Tensor, truth: Tensor, prediction: Tensor) -> None:
        if number >= self._number:
            return
        write_event_picture(
            self._directory / f"event_{number}.png",
            image.numpy(),
            truth.numpy(),
            prediction.numpy(),
            f"Event {number}",
        )


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
    plain = json.loads(json.dumps(record, default=_to_plain))
    text = json.dumps({**plain, "sha256": checksum_of(plain)}, indent=1)
    settings.run.directory.mkdir(parents=True, exist_ok=True)
    name = "results.json" if training is not None else "inference.json"
    write_atomic(settings.run.directory / name, text + "\n")


def _to_plain(value: Any) -> Any:
    return value.value if isinstance(value, enum.Enum) else str(value)


def _tell_result(settings: Settings, metrics: SegmentationMetrics) -> None:
    sys.stdout.write(f"{describe(metrics)}\n")
    say(f"pictures and figures are in {settings.run.directory}")
