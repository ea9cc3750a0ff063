"""Training steps of CosmicTagger at reduced resolution: eager PyTorch against a static program.

    python benchmarks/cosmic.py [--rounds 7] [--steps 5] [--minibatch_size 2]

The network and images of configs/cosmic_quick.yml: 80 x 128 pixels a plane, Adam. Both train on the
same batches in turn, `--steps` updates a round; figures are medians over rounds. The losses of the
first round are compared. Prints a table and writes benchmarks/results/<machine>/cosmic.json.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

from _results import machine, result_path, write_result
from _small import parse_arguments

from torchkiln.core._threads import pin_threads

NUM_THREADS = pin_threads()

import torch

from torchkiln.apps.cosmic import CompiledDevice, PlainDevice, read_settings
from torchkiln.apps.cosmic._data import load_training_events
from torchkiln.apps.cosmic._tagger import TaggerWithLoss, make_tagger

ROOT = Path(__file__).parents[1]


def run(rounds: int, num_steps: int, minibatch_size: int) -> dict:
    settings = read_settings(
        [
            "--config",
            str(ROOT / "configs" / "cosmic_quick.yml"),
            f"run.minibatch_size={minibatch_size}",
            f"data.num_events={num_steps * minibatch_size}",
        ]
    )
    images = load_training_events(settings.data)
    batches = list(torch.utils.data.DataLoader(images, minibatch_size))
    steps, compile_s = {}, None
    for name, kind in (("eager", PlainDevice), ("torchkiln", CompiledDevice)):
        device, tagger = kind(settings), make_tagger(settings)
        optimizer_settings = settings.mode.optimizer
        module = TaggerWithLoss(tagger, optimizer_settings.loss_balance_scheme).train()
        optimizer = device.make_optimizer(
            optimizer_settings.name, module.parameters(), optimizer_settings.learning_rate
        )
        steps[name] = device.make_training(module, optimizer)
        compile_s = steps[name].compile(*batches[0])
    times: dict[str, list[float]] = {name: [] for name in steps}
    first_losses: dict[str, list[float]] = {}
    for round_number in range(rounds + 1):
        for name, step in steps.items():
            begin = time.perf_counter()
            losses = [float(step(*batch)[1].mean()) for batch in batches]
            seconds = (time.perf_counter() - begin) / len(batches)
            if round_number == 0:  # warm-up
                first_losses[name] = losses
            else:
                times[name].append(seconds)
    figures = {
        name: {
            "step_ms": statistics.median(seconds) * 1e3,
            "step_ms_min": min(seconds) * 1e3,
            "step_ms_max": max(seconds) * 1e3,
            "images_per_s": minibatch_size / statistics.median(seconds),
            "first_losses": first_losses[name],
        }
        for name, seconds in times.items()
    }
    return {
        "command": (
            f"python benchmarks/cosmic.py --rounds {rounds} --steps {num_steps} "
            f"--minibatch_size {minibatch_size}"
        ),
        "machine": {**machine(), "threads": NUM_THREADS},
        "image": list(images[0][0].shape),
        "compile_s": compile_s,
        "results": figures,
        "speedup": figures["eager"]["step_ms"] / figures["torchkiln"]["step_ms"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--minibatch_size", type=int, default=2)
    parser.add_argument("--json", type=Path, default=result_path("cosmic"))
    options = parse_arguments(parser, rounds=1, steps=1, minibatch_size=1)
    record = run(options.rounds, options.steps, options.minibatch_size)
    for name, figures in record["results"].items():
        print(
            f"{name:<10} {figures['step_ms']:8.1f} ms a step  {figures['images_per_s']:6.1f} "
            f"images/s  first losses {' '.join(f'{x:.5f}' for x in figures['first_losses'])}"
        )
    print(f"{record['speedup']:.2f} x eager; compiled in {record['compile_s']:.0f} s")
    write_result(options.json, record)
    print(f"wrote {options.json}")


if __name__ == "__main__":
    main()
