"""Does loading overlap with a running program? Synchronous, thread and process, side by side.

    python benchmarks/overlap.py [--batches 40] [--rounds 5]

The program trains an MLP on one pinned core, with the backend that TORCHKILN_BACKEND names. The
dataset takes about as long to load a batch as the program needs to train on it, either asleep (as
when waiting for a disk) or computing in Python (as when parsing); so perfect overlap halves the
time. The thread and the process load on another core, if there is one. Prints medians and writes
benchmarks/results/<machine>/overlap.json.
"""

from __future__ import annotations

import argparse
import os
import queue
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import torch
from _results import machine, result_path, write_result
from _small import parse_arguments
from torch import Tensor
from torch.utils.data import Dataset

from torchkiln import Options, training_model
from torchkiln.data import DataLoader

BATCH_SIZE = 16
FEATURES = 256
BUFFER_SIZE = 3


class SlowDataset(Dataset):
    """Spends `delay` on every element."""

    def __init__(self, count: int, delay: Callable[[], None]) -> None:
        self._count = count
        self._delay = delay
        self._x = torch.randn(FEATURES)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self._delay()
        return self._x, self._x


class Regression(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(*[torch.nn.Linear(FEATURES, FEATURES) for _ in range(8)])

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        # Each element stands for 8, so that a small batch makes a step of some milliseconds.
        output = self.layers(x.repeat(8, 1))
        return output, torch.nn.functional.mse_loss(output, y.repeat(8, 1))


def in_thread(batches: Iterable, cores: set[int]) -> Iterator:
    """What one would write without a second process."""
    ready: queue.Queue = queue.Queue(BUFFER_SIZE)
    end = object()

    def load() -> None:
        os.sched_setaffinity(0, cores)  # of this thread only
        for batch in batches:
            ready.put(batch)
        ready.put(end)

    thread = threading.Thread(target=load, daemon=True)
    thread.start()
    while (batch := ready.get()) is not end:
        yield batch
    thread.join()


def seconds_per_batch(batches: Iterable, step: Callable[..., object]) -> float:
    """Train on all batches; the first is not counted, since every loader has to wait for it."""
    iterator = iter(batches)
    step(*next(iterator))
    start = time.perf_counter()
    count = 0
    for batch in iterator:
        step(*batch)
        count += 1
    return (time.perf_counter() - start) / count


def compute(loops: int) -> int:
    total = 0
    for i in range(loops):
        total += i * i
    return total


def measure(options: Options, batches: int, rounds: int) -> dict:
    allowed = sorted(os.sched_getaffinity(0))
    own, other = {allowed[0]}, {allowed[-1]}
    os.sched_setaffinity(0, own)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    module = Regression()
    program = training_model(module, options, torch.optim.SGD(module.parameters(), lr=1e-3))
    sample = torch.randn(BATCH_SIZE, FEATURES)

    step_s = seconds_per_batch([(sample, sample)] * (batches + 5), program)
    item_s = step_s / BATCH_SIZE
    start = time.perf_counter()
    compute(1_000_000)
    loops = int(item_s / (time.perf_counter() - start) * 1_000_000)
    delays = {"sleeping": lambda: time.sleep(item_s), "computing": lambda: compute(loops)}

    result: dict = {"step_ms": step_s * 1e3, "cores": len(allowed), "datasets": {}}
    for name, delay in delays.items():
        dataset = SlowDataset((batches + 1) * BATCH_SIZE, delay)
        sync = DataLoader(options, dataset, BATCH_SIZE)
        settings = {"buffer_size": BUFFER_SIZE, "load_indefinitely": False, "cores": other}
        ahead = DataLoader(options, dataset, BATCH_SIZE, mode="async", async_options=settings)
        ways: dict[str, Callable[[], float]] = {
            "load only": lambda loader=sync: seconds_per_batch(loader, lambda *batch: None),
            "sync": lambda loader=sync: seconds_per_batch(loader, program),
            "thread": lambda loader=sync: seconds_per_batch(in_thread(loader, other), program),
            "process": lambda loader=ahead: seconds_per_batch(loader, program),
        }
        # Alternating, so that a noisy minute hits all of them.
        times: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(rounds):
            for way, run in ways.items():
                times[way].append(run() * 1e3)
        ahead.terminate()
        result["datasets"][name] = {
            way: {"median_ms": statistics.median(t), "min_ms": min(t), "max_ms": max(t)}
            for way, t in times.items()
        }
    os.sched_setaffinity(0, allowed)
    return result


def report(result: dict) -> None:
    if result["load_average_before"] > result["cores"] / 2:
        print(
            f"note: other work was running (load average {result['load_average_before']:.1f} on "
            f"{result['cores']} cores); the loading process may have had no core to itself"
        )
    print(f"backend {result['backend']}, step alone {result['step_ms']:.1f} ms; ms per batch:")
    print(f"{'dataset':<10} {'load only':>10} {'sync':>8} {'thread':>8} {'process':>8}", end="")
    print(f" {'sync/thread':>12} {'sync/process':>13}")
    for name, ways in result["datasets"].items():
        ms = {way: numbers["median_ms"] for way, numbers in ways.items()}
        print(f"{name:<10} {ms['load only']:>10.1f} {ms['sync']:>8.1f}", end="")
        print(f" {ms['thread']:>8.1f} {ms['process']:>8.1f}", end="")
        print(f" {ms['sync'] / ms['thread']:>11.2f}x {ms['sync'] / ms['process']:>12.2f}x")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, default=result_path("overlap"))
    arguments = parse_arguments(parser, batches=3, rounds=1)
    options = Options(show_progress=False)
    result = {
        "command": f"python benchmarks/overlap.py --batches {arguments.batches} "
        f"--rounds {arguments.rounds}",
        "backend": options.backend.value,
        **machine(),
        "load_average_before": os.getloadavg()[0],
        **measure(options, arguments.batches, arguments.rounds),
    }
    report(result)
    write_result(arguments.json, result)


if __name__ == "__main__":
    main()
