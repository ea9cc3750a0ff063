"""Clusters of all sizes, put together as `Molecules`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from torchkiln.datasets.molecules._molecules import Molecules, to_offsets
from torchkiln.datasets.water._frames import Frames


def join_sizes(
    by_size: Mapping[int, Sequence[Frames]], *, source: str, limit: int | None = None
) -> Molecules:
    """Return clusters as molecules, small ones first, each named by its size and its number.

    With a limit, every size gives its first ones, as evenly as possible; what a size lacks, others
    give.
    """
    frames: list[Frames] = []
    names: list[str] = []
    rooms = {size: sum(map(len, parts)) for size, parts in by_size.items()}
    if limit is not None:
        scarce_first = sorted(rooms, key=lambda size: (rooms[size], size))
        for place, size in enumerate(scarce_first):
            rooms[size] = min(rooms[size], even_share(limit, len(rooms) - place))
            limit -= rooms[size]
    for size in sorted(by_size):
        number = 0
        for part in by_size[size]:
            taken = part.where(slice(rooms[size] - number))
            frames.append(taken)
            names += [f"W{size}_{number + one}" for one in range(len(taken))]
            number += len(taken)
    return join_frames(frames, source=source, names=names)


def even_share(left: int, num_sizes: int) -> int:
    """Return how many of `left` clusters the first of `num_sizes` sizes gives: rounded up."""
    return -(-left // num_sizes)


def join_frames(
    frames: Sequence[Frames], *, source: str, names: list[str] | None = None
) -> Molecules:
    """Return the clusters of all `frames` as molecules, in their order."""
    sizes = [np.full(len(part), part.z.shape[1], dtype=np.int64) for part in frames]
    return Molecules(
        offsets=to_offsets(np.concatenate([*sizes, np.empty(0, dtype=np.int64)])),
        z=np.concatenate([*(part.z.reshape(-1) for part in frames), np.empty(0, dtype=np.uint8)]),
        pos=np.concatenate([*(part.pos.reshape(-1, 3) for part in frames), np.empty((0, 3))]),
        names=names,
        targets={"energy": np.concatenate([*(part.energies for part in frames), np.empty(0)])},
        source=source,
        units={"energy": "kcal/mol"},
    )
