"""Writing events as larcv3's HDF5, for other programs and for measuring how fast files are read."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from torchkiln.core import ArgumentError, write_atomic
from torchkiln.datasets.cosmic._event import NUM_PLANES, CosmicEvent
from torchkiln.datasets.cosmic._files import LABEL_GROUP, WIRE_GROUP

_EXTENT = np.dtype([("first", "<u8"), ("N", "<u4")])
_VOXEL_EXTENT = np.dtype([("first", "<u8"), ("N", "<u4"), ("ID", "<u4")])
_VOXEL = np.dtype([("id", "<u8"), ("value", "<f4")])
_EVENT_ID = np.dtype([("run", "<i8"), ("subrun", "<i8"), ("event", "<i8")])
_META = np.dtype(
    [
        ("valid", "u1"),
        ("projection_id", "<u8"),
        ("image_sizes", "<f8", (2,)),
        ("number_of_voxels", "<u8", (2,)),
        ("origin", "<f8", (2,)),
    ],
    align=True,
)


def write_larcv3(path: Path, events: Iterable[CosmicEvent]) -> None:
    """Write events to a file that `Larcv3Events` reads; it appears when it is complete.

    All events are held in memory, 12 bytes a pixel, and so is the file.

    Raises:
        ArgumentError: if there is no event.
        WriteError: if the file cannot be written.
    """
    import h5py

    kept = list(events)
    if not kept:
        raise ArgumentError(f"no events to write to {path}")
    counts = np.array([np.bincount(event.planes, minlength=NUM_PLANES) for event in kept])
    ids = [
        event.wires.astype(np.uint64) * event.height + event.ticks.astype(np.uint64)
        for event in kept
    ]
    # Written by Python: HDF5 itself crashes the process when a disk is full.
    content = io.BytesIO()
    with h5py.File(content, "w") as file:
        event_ids = np.zeros(len(kept), _EVENT_ID)
        event_ids["event"] = np.arange(len(kept))
        file["Events/event_id"] = event_ids
        for group, name in ((WIRE_GROUP, "values"), (LABEL_GROUP, "labels")):
            voxels = np.zeros(int(counts.sum()), _VOXEL)
            voxels["id"] = np.concatenate(ids)
            voxels["value"] = np.concatenate([getattr(event, name) for event in kept])
            tables = {
                "extents": _extents(len(kept)),
                "image_meta": _meta(kept),
                "voxel_extents": _voxel_extents(counts),
                "voxels": voxels,
            }
            for table, rows in tables.items():
                file.create_dataset(
                    f"Data/{group}/{table}", data=rows, chunks=True, compression="gzip"
                )
    write_atomic(path, content.getvalue())


def _extents(num_events: int) -> np.ndarray:
    extents = np.zeros(num_events, _EXTENT)
    extents["first"] = NUM_PLANES * np.arange(num_events)
    extents["N"] = NUM_PLANES
    return extents


def _meta(events: list[CosmicEvent]) -> np.ndarray:
    meta = np.zeros(NUM_PLANES * len(events), _META)
    sizes = np.repeat([(event.width, event.height) for event in events], NUM_PLANES, axis=0)
    meta["valid"] = 1
    meta["projection_id"] = np.tile(np.arange(NUM_PLANES), len(events))
    meta["image_sizes"] = meta["number_of_voxels"] = sizes
    return meta


def _voxel_extents(counts: np.ndarray) -> np.ndarray:
    extents = np.zeros(counts.size, _VOXEL_EXTENT)
    extents["first"][1:] = np.cumsum(counts)[:-1]
    extents["N"] = counts.reshape(-1)
    extents["ID"] = np.tile(np.arange(NUM_PLANES), len(counts))
    return extents
