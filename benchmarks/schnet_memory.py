"""Peak memory of a training step of SchNet: PyG eager and Torchkiln on the same molecules.

    python benchmarks/schnet_memory.py [--models A,B] [--batch_sizes 128,512] [--repeats 3]

Each figure comes from a process of its own, which makes model and optimiser, loads one batch, and
then takes two training steps. It is the highest resident size during the steps minus the resident
size before the first: activations, gradients and the states of Adam, not libraries, weights or
data. Torchkiln's executable is built beforehand, by another process; the measured one must not
have loaded a compiler. All contenders see the same molecules of QM9; Torchkiln's pack is the
smallest that holds them. Results of other models and sizes are kept beside them in
benchmarks/results/<machine>/schnet_memory.json. Linux only.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _results import machine, read_result, result_path, write_result
from _small import parse_arguments

from torchkiln.core._threads import pin_threads

# The first makes Adam's states, so the second is the one that has everything.
STEPS = 2
# Contender: filters of Torchkiln's SchNet, or None for PyG's.
CONTENDERS = {"PyG eager": None, "Torchkiln exact": "exact", "Torchkiln table": "table"}
BASELINE = "PyG eager"


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="A,B", help="A: 128/6/50, 10 A; B: 100/4/25, 6 A, k=28")
    parser.add_argument("--batch_sizes", default="128,512", help="molecules a step")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, help="default: one for each core")
    parser.add_argument("--json", type=Path, default=result_path("schnet_memory"))
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    return parse_arguments(parser, models="B", batch_sizes="4", repeats=1)


def prepare(model: str, folder: str, batch_size: str) -> None:
    """Write one batch in both forms, so that the measured processes read nothing else."""
    import torch
    from _schnet_contenders import KEYS, MODELS, Workload
    from torch_geometric.data import Batch

    from torchkiln.graphs import BatchSpec, FixedSizeLoader

    count, place = int(batch_size), Path(folder)
    workload = Workload.load(MODELS[model], count, num_nodes=0)
    sizes = workload.dataset.store.sizes
    # A pack keeps one node, one edge and one graph for filler.
    spec = BatchSpec(int(sizes["nodes"].sum()) + 1, int(sizes["edges"].sum()) + 1, count + 1)
    (pack,) = FixedSizeLoader(workload.dataset.store, spec)
    if int(pack.graph_mask.sum()) != count:
        raise SystemExit(f"the pack holds {int(pack.graph_mask.sum())} of {count} molecules")
    directed = Batch.from_data_list(workload.directed)
    for name, batch in {"pack": pack, "directed": directed}.items():
        # Copies: tensors of a batch may be views of one buffer.
        tensors = {key: batch[key].clone() for key in KEYS if key in batch}
        torch.save(tensors, place / f"{name}.pt")
    torch.save(workload.weights, place / "weights.pt")


def make_step(contender: str, model: str, folder: Path) -> Callable[[], Any]:
    """Return one training step on the batch in `folder`."""
    import torch
    from _schnet_contenders import KEYS, LEARNING_RATE, MODELS, pyg_model

    from torchkiln import Options, training_model
    from torchkiln.datasets._array_cache import data_dir
    from torchkiln.models import MoleculeRegression, SchNet

    weights = torch.load(folder / "weights.pt")
    sizes = MODELS[model].arguments
    filters = CONTENDERS[contender]
    if filters is None:
        network = pyg_model(sizes, weights)
        adam = torch.optim.Adam(network.parameters(), lr=LEARNING_RATE)
        batch = torch.load(folder / "directed.pt")
        edges = (batch["edge_index"], batch["edge_weight"])

        def step() -> None:
            adam.zero_grad()
            out = network(batch["z"], edges, batch["batch"])
            torch.nn.functional.mse_loss(out[:, 0], batch["y"]).backward()
            adam.step()

        return step
    schnet = SchNet(**sizes, filter=filters)  # type: ignore[arg-type]
    schnet.load_state_dict(weights)
    module = MoleculeRegression(schnet)
    optimizer = torch.optim.Adam(module.parameters(), lr=LEARNING_RATE)
    options = Options(cache_dir=data_dir() / "benchmark_executables", show_progress=False)
    program = training_model(module, options, optimizer)
    pack = torch.load(folder / "pack.pt")
    return lambda: program(*(pack[key] for key in KEYS))


def resident(name: str) -> int:
    """Return `VmRSS`, the resident size now, or `VmHWM`, its highest value, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"/proc/self/status does not know {name}")


def build(model: str, folder: str, contender: str) -> None:
    """Fill the cache of executables."""
    make_step(contender, model, Path(folder))()


def measure(model: str, folder: str, contender: str) -> dict[str, float]:
    """Take the steps; return bytes."""
    step = make_step(contender, model, Path(folder))
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # begins to look for the highest value anew
    for _ in range(STEPS):
        step()
    highest = resident("VmHWM")
    if "torch._inductor.graph" in sys.modules:
        raise SystemExit(f"{contender} compiled in the measured process: its figure means nothing")
    return {"before": before, "highest": highest, "rise": highest - before}


def run_child(threads: int, task: str, *what: object) -> dict[str, float]:
    """Run one of `TASKS` in a new process; this one never imports torch, which would pin it."""
    command = [sys.executable, __file__, "--threads", str(threads), "--child", task]
    done = subprocess.run(
        [*command, *map(str, what)], check=True, stdout=subprocess.PIPE, text=True
    )
    return json.loads(done.stdout.splitlines()[-1])


TASKS: dict[str, Callable[..., Any]] = {"prepare": prepare, "build": build, "measure": measure}


def compare(threads: int, model: str, batch_size: int, repeats: int) -> dict[str, dict[str, Any]]:
    """Return the rises of all contenders, in bytes, and their shares of PyG's."""
    rises: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    with tempfile.TemporaryDirectory(prefix="torchkiln-memory-") as folder:
        run_child(threads, "prepare", model, folder, batch_size)
        for name, filters in CONTENDERS.items():
            if filters is not None:
                run_child(threads, "build", model, folder, name)
        for _ in range(repeats):
            for name in CONTENDERS:
                rises[name].append(run_child(threads, "measure", model, folder, name)["rise"])
    base = statistics.median(rises[BASELINE])
    return {
        name: {"bytes": values, "share": statistics.median(values) / base}
        for name, values in rises.items()
    }


def main() -> None:
    arguments = read_arguments()
    threads = pin_threads(arguments.threads)
    if arguments.child:
        task, *what = arguments.child
        print(json.dumps(TASKS[task](*what)))
        return
    results: dict[str, dict[str, Any]] = {}
    print(f"{'peak memory of a training step':32}{'MB':>8}{'of PyG':>9}")
    for model in arguments.models.split(","):
        for size in map(int, arguments.batch_sizes.split(",")):
            rows = compare(threads, model, size, arguments.repeats)
            results[f"{model}, {size} molecules"] = rows
            for name, row in rows.items():
                title = f"{model}, {size} molecules, {name}"
                megabytes = statistics.median(row["bytes"]) / 1e6
                print(f"{title:32}{megabytes:>8.0f}{row['share']:>8.1%}", flush=True)
    path = arguments.json
    earlier = read_result(path).get("results", {})
    record = {**machine(), "threads": threads, "results": {**earlier, **results}}
    write_result(path, record)
    print(f"\nwritten to {arguments.json}")


if __name__ == "__main__":
    main()
