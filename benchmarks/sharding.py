"""Memory of each rank, and seconds of an update, with whole and with divided optimiser state.

    python benchmarks/sharding.py [--ranks 1,2,4] [--width 2048] [--layers 5] [--optimizers Adam]

A perceptron is trained in as many processes as `--ranks` says, each with one thread, with
`shard_optimizer` off and on. "state" and "sums" are the bytes of tensors that a rank keeps between
steps: the optimiser's state, and the sums of gradients. "rise" is what its resident size has grown
by since model and data were made, after some updates and without what malloc keeps of freed memory;
"highest" is the most that it has grown by meanwhile, with that. Executables are compiled
beforehand, by other processes. With more ranks than cores, seconds tell nothing about more
machines. Linux only.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _results import machine, result_path, write_result
from _small import parse_arguments

UPDATES = 5


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", default="1,2,4", help="how many processes")
    parser.add_argument("--width", type=int, default=2048, help="of each layer")
    parser.add_argument("--layers", type=int, default=5)
    parser.add_argument("--batch_size", type=int, default=16, help="samples of each rank")
    parser.add_argument("--optimizers", default="Adam", help="names in torch.optim")
    parser.add_argument("--json", type=Path, default=result_path("sharding"))
    parser.add_argument("--child", help=argparse.SUPPRESS)
    return parse_arguments(parser, ranks="1,2", width=40, layers=2)


def resident(name: str) -> int:
    """Return `VmRSS`, the resident size now, or `VmHWM`, its highest value, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"/proc/self/status does not know {name}")


def train(settings: dict[str, Any]) -> None:
    """Train in this rank, and leave its figures in the folder of the settings."""
    import torch
    from torch import nn

    from torchkiln import Options, training_model
    from torchkiln.distributed import start

    class Perceptron(nn.Sequential):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return nn.functional.mse_loss(super().forward(x), y)

    world = start()
    width, folder = settings["width"], Path(settings["folder"])
    layers = [
        part for _ in range(settings["layers"]) for part in (nn.Linear(width, width), nn.ReLU())
    ]
    module = Perceptron(*layers[:-1])
    options = world.options(
        Options(
            cache_dir=folder / "cache",
            show_progress=False,
            shard_optimizer=settings["divided"],
            collective_timeout_s=1_000.0,
        )
    )
    optimizer = getattr(torch.optim, settings["optimizer"])(
        module.parameters(), **settings["numbers"]
    )
    x, y = torch.randn(2, settings["batch_size"], width)
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # begins to look for the highest value anew
    program = training_model(module, options, optimizer)
    program(x, y)
    seconds = []
    for _ in range(UPDATES):
        begin = time.perf_counter()
        program(x, y)
        seconds.append(time.perf_counter() - begin)
    gc.collect()
    highest = resident("VmHWM") - before
    ctypes.CDLL(None).malloc_trim(0)  # what steps freed, and malloc keeps, is no need of theirs
    executor = program.executor
    kept = executor.optimizer.state_tensors
    sums = {
        total.untyped_storage().data_ptr(): total.untyped_storage()
        for total in executor.sharing.sums
    }
    figures = {
        "parameters": sum(parameter.nbytes for parameter in module.parameters()),
        "state": sum(tensor.untyped_storage().nbytes() for tensor in kept),
        "sums": sum(storage.nbytes() for storage in sums.values()),
        "rise": resident("VmRSS") - before,
        "highest": highest,
        "seconds": statistics.median(seconds),
        "collective_s": program.collective_seconds / (UPDATES + 1),
        "compiled": program.num_compiles,
    }
    (folder / f"{world.rank}.json").write_text(json.dumps(figures))


def run_ranks(num_ranks: int, settings: dict[str, Any]) -> list[dict[str, float]]:
    """Train in new processes; this one never imports torch. Return the figures of each rank."""
    command = [sys.executable, __file__, "--child", json.dumps(settings)]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_ranks)]
    if num_ranks > 1:
        command[1:1] = launcher
    subprocess.run(command, check=True, timeout=1_800, env={**os.environ, "OMP_NUM_THREADS": "1"})
    folder = Path(settings["folder"])
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(num_ranks)]


def measure(num_ranks: int, settings: dict[str, Any]) -> dict[str, float]:
    """Return the most that a rank needs, and the median of the ranks' seconds."""
    with tempfile.TemporaryDirectory(prefix="torchkiln-sharding-") as folder:
        own = {**settings, "folder": folder}
        run_ranks(num_ranks, own)
        ranks = run_ranks(num_ranks, own)
    is_native = os.environ.get("TORCHKILN_BACKEND", "inductor") == "inductor"
    if is_native and any(rank["compiled"] for rank in ranks):
        raise SystemExit("a measured process compiled: its memory means nothing")
    medians = ("seconds", "collective_s")
    return {
        name: statistics.median(rank[name] for rank in ranks)
        if name in medians
        else max(rank[name] for rank in ranks)
        for name in ranks[0]
        if name != "compiled"
    }


def main() -> None:
    arguments = read_arguments()
    if arguments.child:
        train(json.loads(arguments.child))
        return
    columns = ("parameters", "sums", "state", "rise", "highest")
    print(f"{'MB of a rank':28}" + "".join(f"{name:>11}" for name in columns), "   s/update")
    results: dict[str, dict[str, float]] = {}
    for optimizer in arguments.optimizers.split(","):
        numbers = {"lr": 1e-4} | ({"momentum": 0.9} if optimizer == "SGD" else {})
        for num_ranks in map(int, arguments.ranks.split(",")):
            for divided in (False, True)[: 1 if num_ranks == 1 else 2]:
                settings = {
                    "width": arguments.width,
                    "layers": arguments.layers,
                    "batch_size": arguments.batch_size,
                    "optimizer": optimizer,
                    "numbers": numbers,
                    "divided": divided,
                }
                figures = measure(num_ranks, settings)
                name = f"{optimizer}, {num_ranks} ranks, {'divided' if divided else 'whole'}"
                results[name] = figures
                row = "".join(f"{figures[column] / 1e6:>11.1f}" for column in columns)
                print(f"{name:28}{row}{figures['seconds']:>12.3f}", flush=True)
    kept = ("width", "layers", "batch_size", "optimizers", "ranks")
    settings = {name: vars(arguments)[name] for name in kept}
    write_result(arguments.json, {"machine": machine(), "settings": settings, "results": results})
    print(f"\nwritten: {arguments.json}")


if __name__ == "__main__":
    main()
