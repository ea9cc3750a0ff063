"""Water clusters for tests, and the files that HydroNet would keep them in."""

import numpy as np

from torchkiln.datasets.water._generate import random_start


def some_clusters(num_molecules, count, seed=0):
    """Return random arrangements [count, num_molecules, 3, 3], not relaxed."""
    random = np.random.default_rng([seed, num_molecules])
    return np.array([random_start(num_molecules, random) for _ in range(count)])


def energies_of(pos):
    """Return numbers that tell a cluster: files are about numbers, not about physics."""
    return np.round(-pos.shape[1] - np.abs(pos).sum((1, 2, 3)) / 100, 6)


def xyz_text(pos, energies, *, comment="{number} {energy:.8f}", end="\n"):
    """Return frames in the form of the release."""
    lines = []
    for number, (cluster, energy) in enumerate(zip(pos, energies, strict=True)):
        atoms = cluster.reshape(-1, 3)
        lines += [f"{len(atoms)}", comment.format(number=number, energy=energy)]
        lines += [
            f"{symbol}  {x: .10f} {y: .10f} {z: .10f}"
            for symbol, (x, y, z) in zip("OHH" * len(cluster), atoms, strict=True)
        ]
    return end.join(lines) + end
