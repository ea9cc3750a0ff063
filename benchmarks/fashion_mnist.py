"""Images per second when training on Fashion-MNIST: eager PyTorch, torch.compile, Torchkiln.

    python benchmarks/fashion_mnist.py [--threads 1] [--rounds 7] [--seconds 2] [--models NAMES]

The two models of examples/fashion_mnist, batches of 16, momentum SGD, loading included: every
contender reads the same images in a loader of its own (eager PyTorch also with a worker process,
which is how it can load ahead). All start from the same weights and take turns; figures are medians
over the rounds, ratios are formed round by round. A loss that is not finite is an error. Threads
are pinned. Writes benchmarks/results/<machine>/fashion_mnist.json, each number of threads beside
the others.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _results import machine, read_result, result_path, write_result
from _small import parse_arguments

from torchkiln.core import StoreError
from torchkiln.core._threads import pin_threads

ROOT = Path(__file__).resolve().parents[1]
BATCH_SIZE, DEVICE_ITERATIONS = 16, 25


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="tutorial,sensible")
    parser.add_argument(
        "--compile",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="torch.compile, too",
    )
    parser.add_argument("--threads", type=int, help="default: one for each core")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each contender in a round")
    parser.add_argument("--root", type=Path, help="folder with the idx files; default: Debian's")
    parser.add_argument("--cache", type=Path, help="directory of executables kept between runs")
    parser.add_argument("--json", type=Path, default=result_path("fashion_mnist"))
    return parse_arguments(parser, rounds=1, seconds=0.01, compile=False)


def make_contenders(module: Any, lr: float, images: Any, arguments: Any) -> list[Any]:
    """Return everybody who takes turns, each with a copy of `module`, which returns its loss."""
    import torch
    from _schnet_rounds import Contender
    from torch.utils.data import DataLoader

    import torchkiln

    def plain_step(compile_it: bool) -> Callable[[Any], tuple[int, float]]:
        model = copy.deepcopy(module)
        fused = True if compile_it else None
        optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, fused=fused)
        forward = torch.compile(model) if compile_it else model

        def step(batch: Any) -> tuple[int, float]:
            optimizer.zero_grad()
            _, loss = forward(*batch)
            loss.backward()
            optimizer.step()
            return len(batch[1]), loss.item()

        return step

    def program_step(options: torchkiln.Options) -> Callable[[Any], tuple[int, float]]:
        model = copy.deepcopy(module)
        optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
        program = torchkiln.training_model(model, options, optimizer)

        def step(batch: Any) -> tuple[int, float]:
            _, losses = program(*batch)
            return len(batch[1]), losses.mean().item()

        return step

    single = torchkiln.Options(cache_dir=arguments.cache)
    many = single.replace(device_iterations=DEVICE_ITERATIONS, output_mode="all")
    loading: dict[str, Any] = {"batch_size": BATCH_SIZE, "shuffle": True}
    worker = DataLoader(images, num_workers=1, persistent_workers=True, **loading)
    contenders = [
        Contender("eager", DataLoader(images, **loading), plain_step(False)),
        Contender("eager, worker", worker, plain_step(False)),
        Contender("torch.compile", DataLoader(images, **loading), plain_step(True)),
        Contender(
            "Torchkiln", torchkiln.DataLoader(single, images, **loading), program_step(single)
        ),
        Contender(
            f"Torchkiln, {DEVICE_ITERATIONS} steps a call",
            torchkiln.DataLoader(many, images, mode="async", **loading),
            program_step(many),
        ),
    ]
    return [one for one in contenders if arguments.compile or one.name != "torch.compile"]


def summarize(outcomes: list[Any]) -> dict[str, dict[str, Any]]:
    """Return figures by contender; the first one is what the others are compared with."""
    base = outcomes[0].rates
    return {
        outcome.name: {
            "images_per_s": statistics.median(outcome.rates),
            "vs_eager": statistics.median(
                rate / other for rate, other in zip(outcome.rates, base, strict=True)
            ),
            "rounds": outcome.rates,
            "first_call_s": outcome.first_call_s,
            "last_loss": outcome.curve.losses[-1],
        }
        for outcome in outcomes
    }


def keep(results: dict[str, Any], threads: int, path: Path) -> None:
    """Write the figures beside those of other numbers of threads."""
    import torch

    known = read_result(path)
    known[f"{threads} threads"] = {
        **machine(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "batch_size": BATCH_SIZE,
        "models": results,
    }
    write_result(path, known)


def main() -> None:
    arguments = read_arguments()
    threads = pin_threads(arguments.threads)
    # Only now: torch reads the number of threads when it is imported.
    import torch
    from _schnet_rounds import run_rounds

    from torchkiln.datasets.fashion_mnist import generate_shapes, load_fashion_mnist

    sys.path.insert(0, str(ROOT / "examples" / "fashion_mnist"))
    from pytorch_ipu import ClassificationModel, ModelwithLoss, SensibleModel
    from settings import LEARNING_RATES

    modules = {
        "tutorial": lambda: ModelwithLoss(ClassificationModel(), torch.nn.NLLLoss()),
        "sensible": lambda: ModelwithLoss(SensibleModel(), torch.nn.CrossEntropyLoss()),
    }
    try:
        images = load_fashion_mnist(arguments.root)
    except StoreError as error:
        # One dataset that is not installed must not end `make benchmarks`.
        print(f"Fashion-MNIST is left out: {error}")
        if not arguments.small:
            return
        images = generate_shapes(2 * BATCH_SIZE * DEVICE_ITERATIONS)
    results = {}
    for name in arguments.models.split(","):
        if name not in modules:
            raise SystemExit(f"no model {name!r}; choose from {', '.join(modules)}")
        torch.manual_seed(0)
        contenders = make_contenders(modules[name](), LEARNING_RATES[name], images, arguments)
        outcomes = run_rounds(contenders, arguments.rounds, arguments.seconds, f"{name} model")
        results[name] = summarize(outcomes)
        print(f"\n{name} model, {threads} threads, batches of {BATCH_SIZE}")
        for contender, row in results[name].items():
            print(
                f"  {contender:<26}{row['images_per_s']:>9,.0f} images/s"
                f"{row['vs_eager']:>7.2f}x eager, first call {row['first_call_s']:.1f} s"
            )
    keep(results, threads, arguments.json)


if __name__ == "__main__":
    main()
