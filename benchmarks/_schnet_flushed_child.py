"""The process that `schnet.py` starts for PyG with denormal numbers flushed to zero.

Flushing is a register of each thread. Threads inherit it from the one that makes them, so it is
set before OpenMP makes its own; in the process of the other contenders it would reach the main
thread only.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch


def flush_on_all_threads() -> None:
    """Flush denormals on every thread of torch's pool, which must not exist yet."""
    if not torch.set_flush_denormal(True):
        raise SystemExit("this processor cannot flush denormal numbers")
    # Long enough for all threads to take part; every one must have made zeros.
    products = torch.full((4_000_000,), 1e-38) * 1e-3
    if products.view(torch.int32).any():
        raise SystemExit("flushing denormal numbers did not reach all threads")


def main() -> None:
    flush_on_all_threads()
    from _schnet_contenders import pyg_contender

    folder = Path(sys.argv[1])
    settings = json.loads((folder / "settings.json").read_text())
    # Written by the parent a moment ago.
    directed, weights = torch.load(folder / "workload.pt", weights_only=False)
    contender = pyg_contender(directed, weights, **settings)
    for line in sys.stdin:
        steps, seconds = contender.work(float(line))
        print(json.dumps({"steps": steps, "seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()
