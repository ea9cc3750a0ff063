"""Molecules that need no source: random ones, and lattices, whose distances are full of ties."""

import numpy as np

from torchkiln.datasets import Molecules
from torchkiln.datasets.molecules._molecules import to_offsets


def random_molecules(count=40, *, seed=0, lattice=False, smallest=1, largest=14):
    generator = np.random.default_rng(seed)
    sizes = generator.integers(smallest, largest + 1, size=count)
    total = int(sizes.sum())
    if lattice:
        # Different points of a small cube, so that many distances are equal.
        cube = np.stack(np.meshgrid(*[np.arange(3.0)] * 3), axis=-1).reshape(-1, 3)
        pos = np.concatenate([generator.permutation(cube)[:size] for size in sizes])
    else:
        pos = generator.normal(size=(total, 3)) * 2
    z = generator.choice([1, 6, 7, 8], size=total)
    return Molecules(
        offsets=to_offsets(sizes),
        z=z,
        pos=pos,
        names=[f"molecule {number}" for number in range(count)],
        targets={"energy": generator.normal(size=count) * 10 - 100, "Spread": np.arange(count)},
        source="random numbers",
    )
