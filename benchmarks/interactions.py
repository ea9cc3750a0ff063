"""How many molecules of QM9 get their interaction graph in a second.

    python benchmarks/interactions.py [--rounds 5]

For each choice of cutoff and nearest neighbours: all 130,831 molecules, from flat coordinates to
pairs with distances and directions, on all cores; the median over the rounds. The kernels are
compiled before, on a few molecules. Writes benchmarks/results/<machine>/interactions.json.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

from _results import machine, result_path, write_result
from _small import parse_arguments

from torchkiln.datasets import interaction_pairs, qm9_molecules

# Nearest neighbours (None: no limit) and cutoff in angstrom: the two models of
# benchmarks/schnet.py, and limits that cut graphs down, for which distances must be sorted.
CASES = [(None, 10.0), (28, 6.0), (16, 10.0), (8, 6.0)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--limit", type=int, help="use only the first molecules of QM9")
    parser.add_argument("--json", type=Path, default=result_path("interactions"))
    arguments = parse_arguments(parser, rounds=1, limit=200)
    molecules = qm9_molecules()
    if arguments.limit is not None:
        molecules = molecules.first(arguments.limit)
    rows = []
    for k, cutoff in CASES:
        interaction_pairs(molecules.first(100), k=k, cutoff_angstrom=cutoff)
        rates = []
        for _ in range(arguments.rounds):
            start = time.perf_counter()
            pairs = interaction_pairs(molecules, k=k, cutoff_angstrom=cutoff)
            rates.append(len(molecules) / (time.perf_counter() - start))
        rate = statistics.median(rates)
        rows.append({"k": k, "cutoff_angstrom": cutoff, "molecules_per_s": rate, "rounds": rates})
        limit = f"{k} nearest" if k else "all atoms"
        print(f"{limit:>10} within {cutoff:4.1f} A  {rate:>10,.0f} molecules/s", end="  ")
        print(f"{pairs.edge_index.shape[1]:,} pairs")
    record = {
        **machine(),
        "molecules": len(molecules),
        "cases": rows,
    }
    write_result(arguments.json, record)


if __name__ == "__main__":
    main()
