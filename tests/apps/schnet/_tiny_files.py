"""Molecules in files of the user's own: enough for every flag of the benchmark, and quick."""

from __future__ import annotations

from pathlib import Path

import numpy as np

SYMBOLS = np.array(["H", "C", "N", "O"])
FREE_ATOM_EV = np.array([-13.6, -1029.9, -1485.3, -2042.6])  # roughly U0 of free atoms
LARGEST = 6
# A network and a call that take milliseconds.
QUICK = [
    *["--backend", "eager", "--num_features", "8", "--num_interactions", "2"],
    *["--num_gaussians", "5", "--device_iterations", "2", "--batch_size", "4"],
]


def write_molecules(folder: Path, count: int = 60) -> Path:
    """Write molecules.xyz, and their targets U0 and gap to molecules.csv; return the first."""
    random = np.random.default_rng(3)
    frames, rows = [], ["name,U0,gap"]
    for number in range(count):
        size = int(random.integers(2, LARGEST + 1))
        kinds = random.integers(0, len(SYMBOLS), size)
        places = random.uniform(0, 4, (size, 3))
        lines = [
            f"{SYMBOLS[kind]} {x:.5f} {y:.5f} {z:.5f}"
            for kind, (x, y, z) in zip(kinds, places, strict=True)
        ]
        frames.append("\n".join([str(size), f"name=tiny_{number}", *lines]))
        energy = FREE_ATOM_EV[kinds].sum() - 4.0 * size + places[:, 0].mean()
        rows.append(f"tiny_{number},{energy:.8f},{kinds.mean() + places[0, 0]:.8f}")
    path = folder / "molecules.xyz"
    path.write_text("\n".join(frames) + "\n")
    (folder / "molecules.csv").write_text("\n".join(rows) + "\n")
    return path
