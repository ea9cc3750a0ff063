"""Which larcv3 files of cosmic-ray events are in a folder, and whether they are whole."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torchkiln.core import StoreError

if TYPE_CHECKING:
    import h5py

# Wire signals, and the labels of their pixels.
WIRE_GROUP, LABEL_GROUP = GROUPS = ("sparse2d_sbndwire_group", "sparse2d_sbnd_cosmicseg_group")
_TABLES = ("extents", "image_meta", "voxel_extents", "voxels")
_SUFFIXES = (".h5", ".hdf5")
# The most that deflate, the compression of these files, packs into a byte.
_MOST_PER_BYTE = 1032


@dataclass(frozen=True, slots=True)
class CosmicFile:
    """One file, with how many events it has and how many pixels are not empty."""

    path: Path
    num_events: int
    num_voxels: int


def find_cosmic(root: Path, *, read_all: bool = True) -> list[CosmicFile]:
    """Return the files below `root` (or `root` itself), checked.

    Args:
        root: A file or a folder.
        read_all: Read every table to its end, which finds what is damaged inside; otherwise only
            their sizes.

    Raises:
        StoreError: if there is none, or one is damaged or of another kind.
    """
    if root.is_file():
        paths = [root]
    else:
        paths = sorted(path for path in root.rglob("*") if path.suffix in _SUFFIXES)
    if not paths:
        raise StoreError(
            f"{root} holds no larcv3 events; put CosmicTagger's HDF5 files (.h5, such as "
            "cosmic_tagging_light.h5) into a folder and name it with --root"
        )
    return [_check(path, read_all) for path in paths]


def _check(path: Path, read_all: bool) -> CosmicFile:
    import h5py

    try:
        with h5py.File(path, "r") as file:
            num_events = len(file["Events/event_id"])
            voxels = []
            for group in GROUPS:
                for table in _TABLES:
                    content = file[f"Data/{group}/{table}"]
                    _require_held(content)
                    if read_all:
                        # Chunks are compressed: what is cut off is found by reading only.
                        content = content[:]
                    if table == "extents" and len(content) != num_events:
                        raise StoreError(
                            f"{path} has {num_events} events but {len(content)} entries in {group}"
                        )
                voxels.append(len(content))
    except StoreError:
        raise
    except Exception as error:  # whatever h5py raises for tables of other kinds and shapes
        raise StoreError(
            f"{path} is damaged or no larcv3 file with {' and '.join(GROUPS)} "
            f"({str(error).strip(chr(34))}); copy it again"
        ) from error
    return CosmicFile(path, num_events, voxels[0])


def _require_held(table: h5py.Dataset) -> None:
    """Raise for a table with more rows than its bytes can hold: HDF5 makes up what is missing."""
    stored = table.id.get_storage_size()
    if table.ndim != 1 or table.dtype.names is None:
        raise ValueError(f"{table.name} is no table with columns")
    is_packed = table.id.get_create_plist().get_nfilters() > 0
    if table.nbytes > stored * (_MOST_PER_BYTE if is_packed else 1):
        raise ValueError(
            f"{table.name} claims {table.shape[0]:,} rows and has {stored:,} bytes for them"
        )
