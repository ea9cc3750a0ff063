"""The continuous-filter convolution on real molecules: kernel, Numba, plain torch, and PyG's way.

    python benchmarks/cfconv.py [--threads 1 2] [--features 128 100] [--knots 1024]

One interaction layer on about 130 molecules of QM9 (all pairs within 10 angstrom), forward and
backward, with the filters given (`exact`) and from a table of distances (`table`). `torch` is the
reference of the same operation over pairs; `pyg` gathers, multiplies and scatters over directed
edges, as PyG's CFConv does after its filter network; `numba` is the loop of the kernel in Numba.
Forms must agree before they take turns; figures are medians.

Nanoseconds are per pair, forward plus backward. GFLOP/s and GB/s count what the algorithm must do:
one multiplication and addition for each term, and each operand of an edge read or written once.
The processes of different thread counts are children, because pinning happens before torch is
imported. Needs QM9 (`pip install qm9pack`). Writes benchmarks/results/<machine>/cfconv.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from _results import machine, result_path, write_result
from _small import parse_arguments

from torchkiln.core._threads import pin_threads

CUTOFF_ANGSTROM = 10.0
FLOAT_BYTES = 4


def pairs_of_molecules(count: int):
    """Return distances, pairs and molecule of each atom of `count` molecules spread over QM9."""
    import numpy as np
    import torch

    from torchkiln.datasets import qm9_arrays

    arrays = qm9_arrays()
    chosen = np.random.default_rng(0).choice(len(arrays), size=count, replace=False)
    distances, pairs, batch, offset = [], [], [], 0
    for molecule, index in enumerate(np.sort(chosen)):
        atoms = slice(arrays.offsets[index], arrays.offsets[index + 1])
        pos = torch.from_numpy(arrays.pos[atoms])
        near = torch.nn.functional.pdist(pos)
        kept = near <= CUTOFF_ANGSTROM
        pairs.append((torch.triu_indices(len(pos), len(pos), 1) + offset)[:, kept])
        distances.append(near[kept].float())
        batch += [molecule] * len(pos)
        offset += len(pos)
    return torch.cat(distances), torch.cat(pairs, dim=1), torch.tensor(batch)


def make_steps(threads: int, num_features: int, num_knots: int, num_molecules: int):
    """Return the forms by name, each a forward and backward pass, and the number of pairs."""
    import torch
    from _cfconv_numba import NumbaConvolution, parts_of

    from torchkiln.ops import _cfconv_reference as reference
    from torchkiln.ops import cfconv, cfconv_table
    from torchkiln.ops._cfconv_edges import Edges, Places

    torch.manual_seed(0)
    distances, pairs, batch = pairs_of_molecules(num_molecules)
    num_pairs = pairs.shape[1]
    ways = torch.full((num_pairs,), 3, dtype=torch.uint8)
    spacing = CUTOFF_ANGSTROM / (num_knots - 3)
    x = torch.randn(len(batch), num_features, requires_grad=True)
    filters = torch.randn(num_pairs, num_features, requires_grad=True)
    table = torch.randn(num_knots, num_features, requires_grad=True)
    grad = torch.randn(len(batch), num_features)
    both = torch.cat([pairs, pairs.flip(0)], dim=1)
    both_filters = filters.detach().repeat(2, 1).requires_grad_()
    edges, places = Edges(pairs, batch, ways, False), Places(distances, None, num_knots, spacing, 0)

    begins = parts_of(batch[pairs[0]].numpy(), threads)
    for_numba = (distances.numpy(), 1 / spacing, *pairs.numpy(), begins)

    def pyg() -> torch.Tensor:
        messages = both_filters * x[both[0]]
        return torch.zeros_like(x).index_add(0, both[1], messages)

    forwards = {
        "exact, kernel": (lambda: cfconv(x, filters, pairs, batch, ways), filters),
        "exact, torch": (lambda: reference.convolve(x, filters, edges), filters),
        "exact, pyg": (pyg, both_filters),
        "table, kernel": (
            lambda: cfconv_table(x, table, distances, pairs, batch, ways, spacing=spacing),
            table,
        ),
        "table, numba": (lambda: NumbaConvolution.apply(x, table, for_numba), table),
        "table, torch": (
            lambda: reference.convolve(x, reference.interpolate(table, places), edges),
            table,
        ),
    }

    for family in ("exact", "table"):
        results = []
        for name, (forward, weights) in forwards.items():
            if name.startswith(family):
                out = forward()
                grad_x, grad_weights = torch.autograd.grad(out, (x, weights), grad)
                # PyG's way has a filter, and a gradient of it, for each direction.
                grad_weights = grad_weights.unflatten(
                    0, (-1, len(forwards[f"{family}, kernel"][1]))
                )
                results.append((out.detach(), grad_x, grad_weights.sum(0)))
        for other in results[1:]:
            torch.testing.assert_close(other, results[0], rtol=1e-4, atol=1e-3)

    def timed(forward: Callable[[], torch.Tensor], weights: torch.Tensor):
        def step() -> tuple[float, float]:
            start = time.perf_counter()
            out = forward()
            middle = time.perf_counter()
            torch.autograd.grad(out, (x, weights), grad)
            return middle - start, time.perf_counter() - middle

        return step

    return {name: timed(*form) for name, form in forwards.items()}, num_pairs


def measure(threads: int, num_features: int, num_knots: int, molecules: int, rounds: int) -> dict:
    """Let the forms take turns; return nanoseconds per pair and rates by form."""
    steps, num_pairs = make_steps(threads, num_features, num_knots, molecules)
    for step in steps.values():
        step(), step()
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            step()  # the form before it left its own data in the caches
            seconds[name].append(step())
    rows = {}
    for name, times in seconds.items():
        forward, backward = (statistics.median(part) for part in zip(*times, strict=True))
        # Per pair and feature: interpolation 4 terms, messages 2; the table's gradient 2 + 4.
        terms = (2 + 4) if name.startswith("exact") else (6 + 6 + 6)
        numbers = 3 if name.startswith("exact") else 4 + 4 + 8
        total = forward + backward
        rows[name] = {
            "forward_ns": forward / num_pairs * 1e9,
            "backward_ns": backward / num_pairs * 1e9,
            "gflop_per_s": 2 * terms * num_pairs * num_features / total / 1e9,
            "gb_per_s": FLOAT_BYTES * numbers * num_pairs * num_features / total / 1e9,
            "us_per_molecule": total / molecules * 1e6,
        }
    return {"threads": threads, "features": num_features, "pairs": num_pairs, "forms": rows}


def show(result: dict) -> None:
    print(f"\n{result['threads']} threads, {result['features']} features, {result['pairs']} pairs")
    print(f"{'':16}{'forward':>10}{'backward':>10}{'us/mol':>9}{'GFLOP/s':>9}{'GB/s':>7}")
    for name, row in result["forms"].items():
        print(
            f"{name:16}{row['forward_ns']:>7.1f} ns{row['backward_ns']:>7.1f} ns"
            f"{row['us_per_molecule']:>9.2f}{row['gflop_per_s']:>9.1f}{row['gb_per_s']:>7.1f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--features", type=int, nargs="+", default=[128, 100])
    parser.add_argument("--knots", type=int, default=1024)
    parser.add_argument("--molecules", type=int, default=130)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--json", type=Path, default=result_path("cfconv"))
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parse_arguments(parser, threads=[1], features=[16], knots=64, molecules=6, rounds=1)
    if arguments.child:
        (threads,) = arguments.threads
        pin_threads(threads)
        os.environ["NUMBA_NUM_THREADS"] = str(threads)
        sizes = (arguments.knots, arguments.molecules, arguments.rounds)
        print(json.dumps([measure(threads, width, *sizes) for width in arguments.features]))
        return
    results = []
    for threads in arguments.threads:
        command = [sys.executable, __file__, "--child", "--threads", str(threads)]
        command += ["--features", *map(str, arguments.features), "--knots", str(arguments.knots)]
        command += ["--molecules", str(arguments.molecules), "--rounds", str(arguments.rounds)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        results += json.loads(done.stdout.splitlines()[-1])
    for result in results:
        show(result)
    record = {**machine(), "results": results}
    settings = {key: getattr(arguments, key) for key in ("knots", "molecules", "rounds")}
    write_result(arguments.json, {**record, **settings})
    print(f"\nwritten to {arguments.json}")


if __name__ == "__main__":
    main()
