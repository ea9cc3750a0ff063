"""Clusters of a HydroNet release, as many as a subset, a limit or a split file asks for."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from torchkiln.core import StoreError
from torchkiln.core._progress import progress_bar
from torchkiln.datasets.molecules._molecules import Molecules
from torchkiln.datasets.water._assemble import join_frames, join_sizes
from torchkiln.datasets.water._frames import Frames
from torchkiln.datasets.water._hydronet_files import find_files, read_file, size_of
from torchkiln.datasets.water._subsets import MIN_MOLECULES, Subset


def read_release(
    root: Path, subset: Subset, *, limit: int | None = None, progress: bool = True
) -> Molecules:
    """Return the clusters of `subset` in the files below `root`, small ones first.

    Args:
        root: Folder of the release, or one of its files.
        subset: Which clusters.
        limit: At most so many, as evenly from all sizes as there are, the first of each: nothing
            beyond is read where each size has its file.
        progress: Draw a progress bar.

    Raises:
        StoreError: if files are missing or damaged, or hold nothing of the subset.
    """
    kept: dict[int, list[Frames]] = defaultdict(list)
    seen: dict[int, int] = defaultdict(int)
    bounds = [bound for bound in (limit, subset.max_per_size) if bound is not None]
    files = find_files(root)
    with progress_bar(desc="Reading water clusters", unit=" clusters", show=progress) as bar:
        for path in files:
            size = size_of(path.name)
            if size is not None and not subset.holds(size):
                continue
            bar.set_postfix_str(path.name)
            for frames in read_file(path):
                found = frames.num_molecules
                numbers = seen[found] + np.arange(len(frames))
                seen[found] += len(frames)
                bar.update(len(frames))
                if not subset.holds(found):
                    continue
                chosen = np.flatnonzero(subset.chosen(numbers))
                if bounds:
                    chosen = chosen[: min(bounds) - sum(map(len, kept[found]))]
                kept[found].append(frames.where(chosen))
                # A file of one size need not be read any further; others might bring other sizes.
                if size is not None and bounds and sum(map(len, kept[size])) == min(bounds):
                    break
    molecules = join_sizes(kept, source=str(root), limit=limit)
    if not len(molecules):
        raise StoreError(
            f"{root} has {sum(seen.values())} clusters, but none for the subset {subset.name!r}; "
            "choose another one"
        )
    return molecules


def read_numbered(root: Path, numbers: NDArray[np.int64], *, progress: bool = True) -> Molecules:
    """Return the clusters with these numbers (sorted), as PyG counts them: through all sizes.

    Raises:
        StoreError: if files are missing or damaged, or there are fewer clusters.
    """
    files = find_files(root)
    sizes = [size for path in files if (size := size_of(path.name)) is not None]
    if sizes and sizes != list(range(MIN_MOLECULES, max(sizes) + 1)):
        missing = set(range(MIN_MOLECULES, max(sizes) + 1)) - set(sizes)
        raise StoreError(
            f"a split file numbers clusters through all sizes from {MIN_MOLECULES} on, but {root} "
            f"lacks W{min(missing)}"
            if missing
            else f"{root} has clusters below W{MIN_MOLECULES}"
        )
    kept: list[Frames] = []
    first = 0
    with progress_bar(desc="Reading water clusters", unit=" clusters", show=progress) as bar:
        for path in files:
            bar.set_postfix_str(path.name)
            for frames in read_file(path):
                begin, end = np.searchsorted(numbers, [first, first + len(frames)])
                if end > begin:
                    kept.append(frames.where(numbers[begin:end] - first))
                first += len(frames)
                bar.update(len(frames))
            if first > numbers[-1]:
                break
    if first <= numbers[-1]:
        raise StoreError(
            f"the split file names cluster {numbers[-1]}, but {root} has only {first}; is a file "
            "missing or cut?"
        )
    return join_frames(kept, source=str(root))
