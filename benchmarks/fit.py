"""Is the predicted memory of a training step the memory that it takes? With and without recompute.

    python benchmarks/fit.py [--cases uresnet_640,mlp] [--steps 2] [--json FILE]

For each case: `program.memory_report` predicts, one process compiles into a cache, and a fresh one
loads the executable and trains some steps with Adam. Measured is the rise of that process' peak
resident memory over what it had after importing torch and torchkiln; so the module, the optimiser's
state, the batch, the loaded executable and what the allocator keeps are all in it. Prints a table
and writes benchmarks/results/<machine>/fit.json; cases that are already there are kept unless they
are run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _results import machine, read_result, result_path, write_result
from _small import parse_arguments

WAYS = {"none": None, "auto": "auto"}


def make_case(name: str) -> tuple[Any, tuple[Any, ...]]:
    """Return a module that computes its loss, and a batch."""
    import torch

    torch.manual_seed(0)
    if name.startswith("uresnet_"):
        from torchkiln.models import Segmentation, UResNet2D, UResNetSettings

        height = int(name.removeprefix("uresnet_"))
        width = height * 8 // 5
        settings = UResNetSettings(
            network_depth=3, blocks_per_layer=1, blocks_deepest_layer=1, bottleneck_deepest=64
        )
        images = torch.randn(1, 3, height, width)
        return Segmentation(UResNet2D(settings)), (images, torch.randint(0, 3, images.shape))
    if name == "mlp":
        return ResidualMLP(width=1024, depth=12), (torch.randn(8192, 1024), torch.randn(8192, 1024))
    if name == "small_mlp":
        return ResidualMLP(width=8, depth=1), (torch.randn(16, 8), torch.randn(16, 8))
    raise SystemExit(f"unknown case {name!r}")


def ResidualMLP(width: int, depth: int) -> Any:  # noqa: N802 - a class, made when torch is there
    """Return a stack of residual blocks with a mean squared error."""
    from torch import Tensor, nn

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(
                nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
                for _ in range(depth)
            )

        def forward(self, x: Tensor, target: Tensor) -> Tensor:
            for block in self.blocks:
                x = x + block(x)
            return nn.functional.mse_loss(x, target)

    return Model()


def make_program(name: str, way: str, cache: str) -> tuple[Any, tuple[Any, ...]]:
    import torch

    from torchkiln import Options, training_model

    module, example = make_case(name)
    options = Options(backend="inductor", recompute=WAYS[way], cache_dir=cache, show_progress=False)
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-4)
    return training_model(module, options, optimizer), example


def peak_bytes() -> int:
    """Return the most memory that this process ever had resident."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    raise SystemExit("this system does not tell the peak of resident memory")


def child(task: str, name: str, way: str, cache: str, steps: int) -> dict[str, Any]:
    import psutil
    import torch

    import torchkiln.runtime  # noqa: F401 - counted as part of the process, not of the program

    base = psutil.Process().memory_info().rss
    program, example = make_program(name, way, cache)
    start = time.perf_counter()
    if task == "predict":
        report = program.memory_report(*example)
        return {
            "predicted_bytes": report.total_bytes,
            "parts_bytes": report.parts,
            "recomputed": list(report.recomputed),
            "peak_phase": report.peak_phase,
            "predict_s": time.perf_counter() - start,
        }
    program.compile(*example)
    if task == "compile":
        return {"compile_s": time.perf_counter() - start}
    losses, times = [], []
    for _ in range(steps):
        start = time.perf_counter()
        result = program(*example)
        times.append(time.perf_counter() - start)
        loss = min(torch.utils._pytree.tree_leaves(result), key=lambda tensor: tensor.numel())
        losses.append(float(loss))
    return {
        "measured_bytes": peak_bytes() - base,
        "base_bytes": base,
        "num_captures": program.num_captures,
        "step_s": min(times),
        "losses": losses,
    }


def in_fresh_process(*arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, __file__, "--child", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)} failed:\n{done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def print_table(results: dict[str, dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Memory of a training step (Adam, float32)", title_justify="left")
    for column in ("case", "recompute", "predicted, MB", "measured, MB", "error", "step, s"):
        table.add_column(column, justify="left" if column in ("case", "recompute") else "right")
    for key, row in results.items():
        name, way = key.split("/")
        predicted, measured = row["predicted_bytes"], row["measured_bytes"]
        table.add_row(
            name,
            way,
            f"{predicted / 2**20:,.0f}",
            f"{measured / 2**20:,.0f}",
            f"{predicted / measured - 1:+.1%}",
            f"{row['step_s']:.2f}",
        )
    Console(width=110).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", default="uresnet_640,uresnet_1280,mlp")
    parser.add_argument("--ways", default="none,auto")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--cache", default=None, help="keep executables here between runs")
    parser.add_argument("--json", type=Path, default=result_path("fit"))
    parser.add_argument("--child", nargs=4, default=None)
    if "--small" in sys.argv:
        os.environ["TORCHKILN_BACKEND"] = "inductor"  # there is nothing to measure without
    args = parse_arguments(parser, cases="small_mlp", ways="none")
    if args.child is not None:
        print(json.dumps(child(*args.child, args.steps)))
        return
    results = read_result(args.json).get("cases", {})
    with tempfile.TemporaryDirectory() as scratch:
        cache = args.cache or scratch
        for name in args.cases.split(","):
            for way in args.ways.split(","):
                row: dict[str, Any] = {}
                for task in ("predict", "compile", "run"):
                    row |= in_fresh_process(task, name, way, cache, "--steps", str(args.steps))
                results[f"{name}/{way}"] = row
                write(args.json, results)
    print_table(results)


def write(path: Path, results: dict[str, dict[str, Any]]) -> None:
    import torch

    facts = {
        "command": " ".join(["python", "benchmarks/fit.py", *sys.argv[1:]]),
        **machine(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
    }
    write_result(path, {**facts, "cases": results})


if __name__ == "__main__":
    main()
