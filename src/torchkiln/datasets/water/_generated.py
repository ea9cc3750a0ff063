"""Generated clusters of all sizes, kept in the data directory size by size."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from torchkiln.core._progress import progress_bar
from torchkiln.datasets._array_cache import Arrays, cached_arrays, data_dir
from torchkiln.datasets.molecules._molecules import Molecules
from torchkiln.datasets.water._assemble import even_share, join_sizes
from torchkiln.datasets.water._frames import Frames
from torchkiln.datasets.water._generate import GENERATOR_VERSION, generate_minima, max_walks
from torchkiln.datasets.water._subsets import Subset

if TYPE_CHECKING:
    from tqdm import tqdm

# To cut a part for training or test from, there must be more clusters than are wanted.
_SPARE_FACTOR, _SPARE = 1.5, 100


def generated_molecules(
    subset: Subset, *, seed: int = 0, limit: int | None = None, progress: bool = True
) -> Molecules:
    """Return generated clusters of `subset`, small ones first; computed once, then cached.

    Each size is a file of its own, so that an interrupted call goes on where it was. A limit
    takes the first of each size, evenly, and computes little more than those.
    """
    sizes = subset.generated_sizes
    left = limit
    found = 0
    by_size: dict[int, list[Frames]] = {}
    with progress_bar(
        total=len(sizes) * subset.generated_per_size if limit is None else None,
        desc="Water clusters",
        unit=" minima",
        mininterval=0.5,
        show=progress,
    ) as bar:
        for place, size in enumerate(sizes):
            bar.set_postfix_str(f"{size} of {sizes[-1]} molecules", refresh=False)
            room = count = subset.generated_per_size
            if left is not None:
                room = min(count, even_share(left, len(sizes) - place))
                enough = math.ceil(_SPARE_FACTOR * room / subset.share) + _SPARE
                count = room if subset.share == 1 else min(count, enough)
                if not room:
                    break
            part, walks = minima_of_size(size, count, seed=seed, bar=bar)
            chosen = np.flatnonzero(subset.chosen(walks))[:room]
            by_size[size] = [part.where(chosen)]
            left = None if left is None else left - len(chosen)
            # Cached clusters count as well; small sizes have fewer than hoped for.
            found += len(part)
            bar.update(found - bar.n)
            bar.total = None if limit is not None else found + (len(sizes) - place - 1) * count
    source = f"generated q-TIP4P/F minima (seed {seed}, version {GENERATOR_VERSION})"
    return join_sizes(by_size, source=source)


def minima_of_size(
    num_molecules: int, count: int, *, seed: int = 0, bar: tqdm[Any] | None = None
) -> tuple[Frames, NDArray[np.int64]]:
    """Return `generate_minima`'s clusters and their walks, from the data directory if possible."""
    # A file with more clusters has the same ones first.
    enough = [known for known in _kept_counts(num_molecules, seed) if known >= count]
    kept = min(enough, default=count)

    def build() -> Arrays:
        # As many as the name says: a damaged file of many must not be replaced by one of few.
        pos, energies, walks = generate_minima(num_molecules, kept, seed=seed, bar=bar)
        return {"pos": pos, "energies": energies, "walks": walks}

    arrays = cached_arrays(
        _file_name(num_molecules, kept, seed), build, names=("pos", "energies", "walks")
    )
    walks = arrays["walks"]
    some = np.flatnonzero(walks < max_walks(count))[:count]
    pos = arrays["pos"][some].reshape(len(some), 3 * num_molecules, 3)
    z = np.tile(np.array([8, 1, 1], dtype=np.uint8), (len(some), num_molecules))
    return Frames(z, pos, arrays["energies"][some]), walks[some]


def kept_files(subset: Subset, seed: int) -> list[Path]:
    """Return the files of the data directory that hold the generated clusters of `subset`."""
    files = []
    for size in subset.generated_sizes:
        enough = [n for n in _kept_counts(size, seed) if n >= subset.generated_per_size]
        files += [data_dir() / f"{_file_name(size, min(enough), seed)}.npz"] if enough else []
    return files


def _file_name(num_molecules: int, count: int, seed: int) -> str:
    return f"water/q-tip4p-f_v{GENERATOR_VERSION}_seed{seed}_W{num_molecules}_{count}"


def _kept_counts(num_molecules: int, seed: int) -> list[int]:
    pattern = f"{_file_name(num_molecules, 0, seed).rpartition('_')[0]}_*.npz"
    counts = (path.stem.rpartition("_")[2] for path in data_dir().glob(pattern))
    return [int(count) for count in counts if count.isdecimal()]
