"""Opening the directory of a store: mapped into memory, and verified before it is used.

Header, checksums and offsets are compared at once, columns when graphs are read (`_blocks.py`).
"""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import Any

import numpy as np

from torchkiln.core import StoreError, sha256_file, warn_user
from torchkiln.graphs.store._axes import Counts
from torchkiln.graphs.store._blocks import (
    REMEDY,
    BlockGuard,
    Bytes,
)
from torchkiln.graphs.store._checksums import CHECKSUM_DTYPE, count_blocks
from torchkiln.graphs.store._columns import (
    Columns,
    MappedColumns,
    column_dtype,
    column_length,
    column_shape,
)
from torchkiln.graphs.store._npy import PREAMBLE_BYTES, map_file, numbers_of
from torchkiln.graphs.store._replacing import real_place, settle_folder
from torchkiln.graphs.store._schema import StoreSchema
from torchkiln.graphs.store._store_files import (
    CHECKSUMS,
    HEADER,
    VERSION,
    checked_files,
    read_header,
)

# Whoever finds no store so often, with a pause each time, may believe that there is none.
_MAX_ABSENCES = 5


def open_columns(directory: Path, *, verify: bool) -> tuple[Columns, str]:
    """Map a directory into memory; return its columns and the digest of its header.

    Args:
        directory: The store.
        verify: Compare everything with checksums now, rather than when it is read.

    Raises:
        StoreError: It is not a store, of another version, or damaged.
    """
    absences = 0
    while True:
        settle_folder(real_place(directory), HEADER)
        before = _identity(directory)
        try:
            columns, digest = _open_columns(directory, verify=verify)
        except (StoreError, OSError) as error:
            if _identity(directory) != before:
                continue  # another process has replaced it meanwhile
            if before is None and absences < _MAX_ABSENCES:
                absences += 1  # or several do, and it was gone whenever we looked
                time.sleep(0.002)
                continue
            if isinstance(error, StoreError):
                raise
            raise StoreError(f"{directory} cannot be read ({error}); {REMEDY}") from error
        if _identity(directory) == before:
            return columns, digest


def _identity(directory: Path) -> tuple[int, int] | None:
    """Return what tells a directory from one that takes its place."""
    try:
        found = directory.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _open_columns(directory: Path, *, verify: bool) -> tuple[Columns, str]:
    header = read_header(directory)
    has_blocks = header["version"] == VERSION
    try:
        _check_sizes(directory, header["files"])
        columns = (
            _map_columns(directory, header) if has_blocks else _map_whole_files(directory, header)
        )
    except (StoreError, OSError):
        raise
    except Exception as error:  # a header with odd content lets anything be raised
        raise StoreError(f"{directory} is damaged ({error}); {REMEDY}") from error
    if verify:
        columns.verify_all()
    if not has_blocks:
        warn_user(
            f"{directory} is a store of version {header['version']}, which has no checksums of its "
            f"parts: all of it is read whenever it is opened; to open it at once, {REMEDY}"
        )
    return columns, header["digest"]


def _check_sizes(directory: Path, files: dict[str, dict[str, Any]]) -> None:
    for name, facts in files.items():
        path = directory / name
        size = path.stat().st_size if path.is_file() else None
        if size != facts["bytes"]:
            found = "is missing" if size is None else f"has {size} bytes"
            raise StoreError(f"{path} {found} instead of {facts['bytes']} bytes; {REMEDY}")


def _map_columns(directory: Path, header: dict[str, Any]) -> Columns:
    contents = {name: map_file(directory / name) for name in checked_files(header["files"])}
    # All checksums but those of the header are in one small file, which has one of its own.
    path = directory / CHECKSUMS
    checksums = path.read_bytes()
    if hashlib.sha256(checksums).hexdigest() != header["files"][CHECKSUMS]["sha256"]:
        raise _damaged(path)
    num_blocks = sum(count_blocks(len(content)) for content in contents.values())
    guard = BlockGuard(
        [(directory / name, content) for name, content in contents.items()],
        numbers_of(path, np.frombuffer(checksums, dtype=np.uint8), CHECKSUM_DTYPE, (num_blocks,)),
    )
    for name in header["offsets"].values():
        guard.verify_file(directory / name)
    columns = _to_columns(directory, header, contents)
    files = {name: directory / file for name, file in header["columns"].items()}
    return Columns(
        columns.schema,
        columns.offsets,
        columns.arrays,
        MappedColumns(guard, files, PREAMBLE_BYTES),
    )


def _map_whole_files(directory: Path, header: dict[str, Any]) -> Columns:
    """Map a store of an earlier version, whose files have one checksum each."""
    for name, facts in header["files"].items():
        if sha256_file(directory / name) != facts["sha256"]:
            raise _damaged(directory / name)
    contents = {name: map_file(directory / name) for name in checked_files(header["files"])}
    return _to_columns(directory, header, contents)


def _damaged(path: Path) -> StoreError:
    return StoreError(f"{path} is damaged: its checksum is not that of the header; {REMEDY}")


def _to_columns(directory: Path, header: dict[str, Any], contents: dict[str, Bytes]) -> Columns:
    """Return what the header says of files that were mapped; their offsets must be verified."""
    schema = StoreSchema.from_json(header["schema"])
    num_graphs: int = header["num_graphs"]
    offsets: dict[str, Counts] = {}
    for axis, name in header["offsets"].items():
        offsets[axis] = numbers_of(
            directory / name, contents[name], np.dtype(np.int64), (num_graphs + 1,)
        )
        if num_graphs < 1 or offsets[axis][0] != 0 or (np.diff(offsets[axis]) < 0).any():
            raise ValueError(f"{name} holds no offsets")
    arrays = {}
    for name, attribute in schema.stored():
        file = header["columns"][name]
        shape = column_shape(attribute, column_length(attribute, offsets, num_graphs))
        arrays[name] = numbers_of(directory / file, contents[file], column_dtype(attribute), shape)
    return Columns(schema, offsets, arrays)
