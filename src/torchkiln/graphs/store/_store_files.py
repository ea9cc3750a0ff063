"""A store as a directory: one .npy file per column, and a header that is written last.

    store.json            schema, sizes of files, a checksum of checksums.npy, and one of all that
    checksums.npy         of the blocks of all other files, in the order of their names
    00-x.npy ...          columns
    offsets-nodes.npy ... where each graph begins on an axis

The directory is made under a temporary name and renamed when it is complete, so there is never a
part of a store to open. Nothing in it is ever executed. `_store_opening.py` reads it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, final

import numpy as np

from torchkiln.core import StoreError, Unreadable, read_json, sha256_file
from torchkiln.graphs.store._axes import Counts
from torchkiln.graphs.store._checksums import checksums_of
from torchkiln.graphs.store._columns import (
    Columns,
    column_dtype,
    column_length,
    column_shape,
    feed,
)
from torchkiln.graphs.store._flatten import Flattener
from torchkiln.graphs.store._npy import (
    PREAMBLE_BYTES,
    map_file,
    numbers_of,
    preamble,
    write_npy,
)
from torchkiln.graphs.store._replacing import new_folder, real_place, settle_folder
from torchkiln.graphs.store._schema import StoreSchema

_FORMAT = "torchkiln graph store"
VERSION = 3
HEADER = "store.json"
CHECKSUMS = "checksums.npy"
# Earlier ones that can be opened: their files have one checksum each.
_EARLIER = (1, 2)


def save_columns(columns: Columns, directory: Path, *, overwrite: bool) -> None:
    """Write all columns to a new directory."""
    with _building(directory, overwrite=overwrite) as temporary, _writing(directory):
        files = _file_names(columns.schema)
        for name, _ in columns.schema.stored():
            write_npy(temporary / files[name], columns.arrays[name])
        _write_offsets(temporary, columns.offsets)
        _write_header(temporary, columns.schema, files, columns.offsets)


def stream_to_directory(
    graphs: Iterable[Any],
    directory: Path,
    exclude_keys: frozenset[str],
    levels: Mapping[str, str],
    *,
    overwrite: bool,
    progress: bool,
) -> None:
    """Write graphs as they come; only their sizes are kept in memory."""
    with _building(directory, overwrite=overwrite) as temporary, contextlib.ExitStack() as stack:
        rows: list[_RowFile] = []

        def open_sink(_name: str) -> _RowFile:
            rows.append(_RowFile(temporary / f"row-{len(rows)}.tmp", directory))
            stack.callback(rows[-1].discard)
            return rows[-1]

        flattener = Flattener(open_sink, exclude_keys, levels)
        # Not in the block below: what reading the graphs raises is the dataset's.
        feed(flattener, graphs, progress=progress)
        stack.enter_context(_writing(directory))
        flat = flattener.finish()
        files = _file_names(flat.schema)
        num_graphs = len(next(iter(flat.offsets.values()))) - 1
        for name, attribute in flat.schema.stored():
            length = column_length(attribute, flat.offsets, num_graphs)
            row, *others = (sink for sink in flat.sinks[name] if isinstance(sink, _RowFile))
            for other in others:
                row.append(other)
            row.finish(column_dtype(attribute), column_shape(attribute, length))
            row.path.rename(temporary / files[name])
        _write_offsets(temporary, flat.offsets)
        arrays = {
            name: numbers_of(
                temporary / files[name],
                map_file(temporary / files[name]),
                column_dtype(attribute),
                column_shape(attribute, column_length(attribute, flat.offsets, num_graphs)),
            )
            for name, attribute in flat.schema.stored()
        }
        Columns(flat.schema, flat.offsets, arrays).check_edges()
        _write_header(temporary, flat.schema, files, flat.offsets)


def checked_files(files: Iterable[str]) -> list[str]:
    """Return the files whose blocks have checksums, in the order of these."""
    return sorted(name for name in files if name != CHECKSUMS)


@final
class _RowFile:
    """One row of a column that grows; the first one becomes the .npy file."""

    def __init__(self, path: Path, store: Path) -> None:
        self.path = path
        self._store = store
        with _writing(store):
            self.file: BinaryIO = path.open("w+b")
            self.file.write(bytes(PREAMBLE_BYTES))

    def write(self, data: bytes) -> None:
        try:
            self.file.write(data)
        except OSError as error:
            raise _unwritten(self._store, error) from error

    def discard(self) -> None:
        """Close the file, whether or not all that was written to it gets there."""
        with contextlib.suppress(OSError):
            self.file.close()

    def append(self, other: _RowFile) -> None:
        other.file.seek(PREAMBLE_BYTES)
        shutil.copyfileobj(other.file, self.file, 2**20)
        other.file.close()
        other.path.unlink()

    def finish(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        self.file.seek(0)
        self.file.write(preamble(dtype, shape))
        self.file.close()


@contextlib.contextmanager
def _building(directory: Path, *, overwrite: bool) -> Iterator[Path]:
    """Yield a temporary directory beside `directory` that becomes it when the block succeeds."""
    directory = real_place(directory)
    settle_folder(directory, HEADER)
    if directory.exists() and not directory.is_dir():
        raise StoreError(f"{directory} is a file, so it is not replaced; choose a directory")
    if directory.exists() and not overwrite:
        raise StoreError(f"{directory} exists already; pass overwrite=True to replace it")
    with _writing(directory):
        is_foreign = directory.is_dir() and any(directory.iterdir())
        is_foreign = is_foreign and not (directory / HEADER).is_file()
    if is_foreign:
        raise StoreError(f"{directory} is not a graph store, so it is not replaced; choose another")
    with new_folder(directory, HEADER, overwrite=overwrite) as folder:
        yield folder


@contextlib.contextmanager
def _writing(directory: Path) -> Iterator[None]:
    """Name the store in errors of the disk."""
    try:
        yield
    except OSError as error:
        raise _unwritten(directory, error) from error


def _unwritten(directory: Path, error: OSError) -> StoreError:
    return StoreError(
        f"{directory} cannot be written ({error}); free some space, or choose another directory"
    )


def _file_names(schema: StoreSchema) -> dict[str, str]:
    return {
        name: f"{number:02d}-{_plain(name)}.npy" for number, (name, _) in enumerate(schema.stored())
    }


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_]+", "-", name)[:60]


def _offset_names(axes: Iterable[str]) -> dict[str, str]:
    return {axis: f"offsets-{i:02d}-{_plain(axis)}.npy" for i, axis in enumerate(axes)}


def _write_offsets(directory: Path, offsets: dict[str, Counts]) -> None:
    for axis, name in _offset_names(offsets).items():
        write_npy(directory / name, offsets[axis])


def _write_header(
    directory: Path, schema: StoreSchema, columns: dict[str, str], offsets: dict[str, Counts]
) -> None:
    axes = _offset_names(offsets)
    names = [*columns.values(), *axes.values()]
    for name in names:
        _flush(directory / name)
    blocks = {name: checksums_of(directory / name) for name in checked_files(names)}
    write_npy(directory / CHECKSUMS, np.concatenate(list(blocks.values())))
    _flush(directory / CHECKSUMS)
    facts = {name: {"bytes": (directory / name).stat().st_size} for name in (*names, CHECKSUMS)}
    header: dict[str, Any] = {
        "format": _FORMAT,
        "version": VERSION,
        "num_graphs": len(next(iter(offsets.values()))) - 1,
        "schema": schema.to_json(),
        "columns": columns,
        "offsets": axes,
        "files": {
            **facts,
            CHECKSUMS: {**facts[CHECKSUMS], "sha256": sha256_file(directory / CHECKSUMS)},
        },
    }
    header["digest"] = _digest(header)
    with (directory / HEADER).open("w") as file:
        json.dump(header, file, indent=1)
        file.flush()
        os.fsync(file.fileno())


def _flush(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _digest(header: dict[str, Any]) -> str:
    facts = {name: value for name, value in header.items() if name != "digest"}
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def read_header(directory: Path) -> dict[str, Any]:
    path = directory / HEADER
    if not path.is_file():
        raise StoreError(
            f"{directory} is not a graph store: it has no {HEADER}; make one with "
            "GraphStore.build(dataset, directory)"
        )
    try:
        header = read_json(path)
    except Unreadable as error:
        raise StoreError(f"{path} is damaged ({error}); build the store again") from error
    if not isinstance(header, dict) or header.get("format") != _FORMAT:
        raise StoreError(f"{path} does not belong to a graph store; choose another directory")
    if header.get("version") not in (*_EARLIER, VERSION):
        raise StoreError(
            f"{directory} has version {header.get('version')!r} and this is Torchkiln for versions "
            f"up to {VERSION}; build the store again, or use the Torchkiln that wrote it"
        )
    if header.get("digest") != _digest(header):
        raise StoreError(f"{path} is damaged: its checksum is wrong; build the store again")
    return header
