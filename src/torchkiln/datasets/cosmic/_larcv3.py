"""Events in larcv3's HDF5 files, as CosmicTagger publishes them, read one by one.

A group of sparse images has four tables. `extents` says for each event which rows of the next two
are its planes; `image_meta` their sizes; `voxel_extents` which rows of `voxels` are their pixels. A
pixel has a value and an id: its wire times the number of ticks, plus its tick. Signals and labels
are two such groups with the same pixels.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np
from numpy.typing import NDArray

from torchkiln.core import StoreError
from torchkiln.datasets.cosmic._event import NEUTRINO, NUM_PLANES, CosmicEvent
from torchkiln.datasets.cosmic._files import GROUPS, LABEL_GROUP, WIRE_GROUP, find_cosmic

if TYPE_CHECKING:
    import h5py

# Of a plane; CosmicTagger's has 2.6 million.
_MAX_PIXELS = 100_000_000


@final
class Larcv3Events:
    """The events of larcv3 files, in order; each is read when it is asked for.

    Files are opened by the process that reads, once: an object may be handed to the workers of a
    loader.

    Args:
        root: A file, or a folder whose `.h5` files are taken in the order of their names.

    Raises:
        StoreError: if there is no file, or one is cut off or of another kind. Damage inside of a
            file shows when the event is read; `torchkiln data cosmic` finds it beforehand.
    """

    def __init__(self, root: Path | str) -> None:
        self.files = find_cosmic(Path(root), read_all=False)
        self._ends = np.cumsum([file.num_events for file in self.files])
        # By process: a child that was forked must not read through its parent's handles.
        self._opened: dict[tuple[int, int], h5py.File] = {}

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: int) -> CosmicEvent:
        """Return one event.

        Raises:
            IndexError: if there are not so many.
            StoreError: if its tables do not fit together.
        """
        if not -len(self) <= index < len(self):
            raise IndexError(f"event {index} of {len(self)}")
        index %= len(self)
        number = int(np.searchsorted(self._ends, index, side="right"))
        path = self.files[number].path
        within = index - (int(self._ends[number - 1]) if number else 0)
        try:
            return _read_event(self._open(number), within)
        except Exception as error:  # whatever h5py raises for tables of other kinds and shapes
            raise StoreError(
                f"event {within} of {path} cannot be read: {str(error).strip(chr(34))}; copy the "
                "file again, or leave it out"
            ) from error

    def _open(self, number: int) -> h5py.File:
        key = (os.getpid(), number)
        if key not in self._opened:
            import h5py

            self._opened[key] = h5py.File(self.files[number].path, "r")
        return self._opened[key]

    def close(self) -> None:
        """Close the files; they are opened again when they are needed."""
        for file in self._opened.values():
            file.close()
        self._opened.clear()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": {}}


def _read_event(file: h5py.File, index: int) -> CosmicEvent:
    (ids, values, sizes), (label_ids, labels, _) = (
        _read_group(file[f"Data/{group}"], index) for group in GROUPS
    )
    planes = []
    for plane in range(NUM_PLANES):
        if not np.array_equal(ids[plane], label_ids[plane]):
            raise ValueError(f"{WIRE_GROUP} and {LABEL_GROUP} have other pixels in plane {plane}")
        planes.append(np.full(len(ids[plane]), plane, np.uint8))
    num_wires, num_ticks = sizes
    if not 0 < num_wires * num_ticks <= _MAX_PIXELS or min(sizes) < 1:
        raise ValueError(
            f"{num_wires} wires x {num_ticks} ticks are no image; up to {_MAX_PIXELS:,} pixels are "
            "read"
        )
    pixels, kinds = np.concatenate(ids), np.concatenate(labels)
    signals = np.concatenate(values)
    if not np.isfinite(signals).all():
        raise ValueError(f"{WIRE_GROUP} has signals that are not finite")
    if len(pixels) and int(pixels.max()) >= num_wires * num_ticks:
        raise ValueError(
            f"pixel {int(pixels.max())} lies outside of {num_wires} wires x {num_ticks} ticks"
        )
    if not np.isin(kinds, range(NEUTRINO + 1)).all():
        raise ValueError(f"labels must be 0, 1 or 2, got {np.unique(kinds).tolist()}")
    return CosmicEvent(
        planes=np.concatenate(planes),
        ticks=(pixels % num_ticks).astype(np.int32),
        wires=(pixels // num_ticks).astype(np.int32),
        values=signals,
        labels=kinds.astype(np.uint8),
        height=num_ticks,
        width=num_wires,
    )


def _read_group(
    group: h5py.Group, index: int
) -> tuple[list[NDArray[Any]], list[NDArray[Any]], tuple[int, int]]:
    """Return ids and values of the pixels of each plane, and how many wires and ticks there are."""
    first, number = (int(group["extents"][index][name]) for name in ("first", "N"))
    if number != NUM_PLANES:
        raise ValueError(f"{group.name} has {number} projections instead of {NUM_PLANES}")
    meta = group["image_meta"][first : first + number]
    extents = group["voxel_extents"][first : first + number]
    if meta["projection_id"].tolist() != [0, 1, 2] or extents["ID"].tolist() != [0, 1, 2]:
        raise ValueError(
            f"{group.name} has the projections {meta['projection_id'].tolist()} instead of 0, 1, 2"
        )
    sizes = {(int(wires), int(ticks)) for wires, ticks in meta["number_of_voxels"]}
    if len(sizes) != 1:
        raise ValueError(f"{group.name} has planes of different sizes: {sorted(sizes)}")
    ids, values = [], []
    for extent in extents:
        begin, count = int(extent["first"]), int(extent["N"])
        voxels = group["voxels"][begin : begin + count]
        if len(voxels) != count:
            raise ValueError(f"{group.name} ends before pixel {begin + count:,}")
        ids.append(voxels["id"])
        values.append(voxels["value"])
    return ids, values, sizes.pop()
