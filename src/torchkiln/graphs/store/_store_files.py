"""A store as a directory: one .npy file per column, and a header that is written last.

    store.json            schema, sizes and checksums of whole files, and one of all that
    checksums.npy         of the blocks of all other files, in the order of their names
    00-x.npy ...          columns
    offsets-nodes.npy ... where each graph begins on an axis

The directory is made under a temporary name and renamed when it is complete, so there is never a
part of a store to open. What is opened is verified before it is used: header, checksums and offsets
at once, columns when graphs are read (`_blocks.py`). Nothing in it is ever executed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, final

import numpy as np

from torchkiln.core import StoreError, Unreadable, read_json, sha256_file
from torchkiln.graphs.store._axes import Counts
from torchkiln.graphs.store._blocks import (
    REMEDY,
    BlockGuard,
    Bytes,
    Checksums,
    count_blocks,
)
from torchkiln.graphs.store._columns import (
    Array,
    Columns,
    MappedColumns,
    column_dtype,
    column_length,
    column_shape,
    feed,
    read_only,
)
from torchkiln.graphs.store._flatten import Flattener
from torchkiln.graphs.store._replacing import new_folder, real_place, settle_folder
from torchkiln.graphs.store._schema import StoreSchema

_FORMAT = "torchkiln graph store"
_VERSION = 2
_HEADER = "store.json"
_CHECKSUMS = "checksums.npy"
_CHECKSUM_DTYPE = np.dtype("<u4")
# The first bytes of a .npy file, reserved before the shape is known; a multiple of 64, so that the
# numbers after it are aligned.
_PREAMBLE_BYTES = 192


def save_columns(columns: Columns, directory: Path, *, overwrite: bool) -> None:
    """Write all columns to a new directory."""
    with _building(directory, overwrite=overwrite) as temporary, _writing(directory):
        files = _file_names(columns.schema)
        for name, _ in columns.schema.stored():
            _write_npy(temporary / files[name], columns.arrays[name])
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
            name: _numbers_of(
                temporary / files[name],
                _map(temporary / files[name]),
                column_dtype(attribute),
                column_shape(attribute, column_length(attribute, flat.offsets, num_graphs)),
            )
            for name, attribute in flat.schema.stored()
        }
        Columns(flat.schema, flat.offsets, arrays).check_edges()
        _write_header(temporary, flat.schema, files, flat.offsets)


def open_columns(directory: Path, *, verify: bool) -> tuple[Columns, str]:
    """Map a directory into memory; return its columns and the digest of its header.

    Args:
        directory: The store.
        verify: Compare everything with checksums now, rather than when it is read.

    Raises:
        StoreError: It is not a store, of another version, or damaged.
    """
    while True:
        settle_folder(real_place(directory), _HEADER)
        before = _identity(directory)
        try:
            columns, digest = _open_columns(directory, verify=verify)
        except (StoreError, OSError) as error:
            if _identity(directory) != before:
                continue  # another process has replaced it meanwhile
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
    header = _read_header(directory)
    try:
        _check_files(directory, header["files"], verify=verify)
        columns = _map_columns(directory, header)
    except (StoreError, OSError):
        raise
    except Exception as error:  # a header with odd content lets anything be raised
        raise StoreError(f"{directory} is damaged ({error}); {REMEDY}") from error
    if verify:
        columns.verify_all()
    return columns, header["digest"]


def _check_files(directory: Path, files: dict[str, dict[str, Any]], *, verify: bool) -> None:
    for name, facts in files.items():
        path = directory / name
        size = path.stat().st_size if path.is_file() else None
        if size != facts["bytes"]:
            found = "is missing" if size is None else f"has {size} bytes"
            raise StoreError(f"{path} {found} instead of {facts['bytes']} bytes; {REMEDY}")
        # All checksums but those of the header are in one small file, which has one of its own.
        if (verify or name == _CHECKSUMS) and sha256_file(path) != facts["sha256"]:
            raise StoreError(f"{path} is damaged: its checksum is not that of the header; {REMEDY}")


def _map_columns(directory: Path, header: dict[str, Any]) -> Columns:
    schema = StoreSchema.from_json(header["schema"])
    num_graphs: int = header["num_graphs"]
    contents = {name: _map(directory / name) for name in _checked_files(header["files"])}
    guard = BlockGuard(
        [(directory / name, content) for name, content in contents.items()],
        _numbers_of(
            directory / _CHECKSUMS,
            _map(directory / _CHECKSUMS),
            _CHECKSUM_DTYPE,
            (sum(count_blocks(len(content)) for content in contents.values()),),
        ),
    )
    offsets = {}
    for axis, name in header["offsets"].items():
        guard.verify_file(directory / name)
        offsets[axis] = _numbers_of(
            directory / name, contents[name], np.dtype(np.int64), (num_graphs + 1,)
        )
        if num_graphs < 1 or offsets[axis][0] != 0 or (np.diff(offsets[axis]) < 0).any():
            raise ValueError(f"{name} holds no offsets")
    arrays, files = {}, {}
    for name, attribute in schema.stored():
        file = header["columns"][name]
        shape = column_shape(attribute, column_length(attribute, offsets, num_graphs))
        arrays[name] = _numbers_of(directory / file, contents[file], column_dtype(attribute), shape)
        files[name] = directory / file
    return Columns(schema, offsets, arrays, MappedColumns(guard, files, _PREAMBLE_BYTES))


def _checked_files(files: Iterable[str]) -> list[str]:
    """Return the files whose blocks have checksums, in the order of these."""
    return sorted(name for name in files if name != _CHECKSUMS)


@final
class _RowFile:
    """One row of a column that grows; the first one becomes the .npy file."""

    def __init__(self, path: Path, store: Path) -> None:
        self.path = path
        self._store = store
        with _writing(store):
            self.file: BinaryIO = path.open("w+b")
            self.file.write(bytes(_PREAMBLE_BYTES))

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
        other.file.seek(_PREAMBLE_BYTES)
        shutil.copyfileobj(other.file, self.file, 2**20)
        other.file.close()
        other.path.unlink()

    def finish(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        self.file.seek(0)
        self.file.write(_preamble(dtype, shape))
        self.file.close()


@contextlib.contextmanager
def _building(directory: Path, *, overwrite: bool) -> Iterator[Path]:
    """Yield a temporary directory beside `directory` that becomes it when the block succeeds."""
    directory = real_place(directory)
    settle_folder(directory, _HEADER)
    if directory.exists() and not directory.is_dir():
        raise StoreError(f"{directory} is a file, so it is not replaced; choose a directory")
    if directory.exists() and not overwrite:
        raise StoreError(f"{directory} exists already; pass overwrite=True to replace it")
    with _writing(directory):
        is_foreign = directory.is_dir() and any(directory.iterdir())
        is_foreign = is_foreign and not (directory / _HEADER).is_file()
    if is_foreign:
        raise StoreError(f"{directory} is not a graph store, so it is not replaced; choose another")
    with new_folder(directory, _HEADER, overwrite=overwrite) as folder:
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
        _write_npy(directory / name, offsets[axis])


def _write_npy(path: Path, array: Array) -> None:
    with path.open("wb") as file:
        file.write(_preamble(array.dtype, array.shape))
        # Not `tofile`: it does not notice when the last of its bytes find no room on the disk.
        file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def _preamble(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    fields = {"descr": dtype.str, "fortran_order": False, "shape": tuple(map(int, shape))}
    magic = np.lib.format.magic(1, 0)
    length = _PREAMBLE_BYTES - len(magic) - 2
    text = repr(fields).encode("latin1").ljust(length - 1) + b"\n"
    assert len(text) == length, f"shape {shape} is too long for the preamble of a .npy file"
    return magic + length.to_bytes(2, "little") + text


def _map(path: Path) -> Bytes:
    """Return the content of a file, which the system reads when it is used."""
    # A plain array over the mapping: Numba does not know NumPy's own class for it.
    return np.asarray(np.memmap(path, dtype=np.uint8, mode="r"))


def _numbers_of(path: Path, content: Bytes, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """Return the array of a .npy file, which must be as said.

    Raises:
        StoreError: It is another one.
    """
    num_bytes = math.prod(shape) * dtype.itemsize
    if len(content) != _PREAMBLE_BYTES + num_bytes or content[:_PREAMBLE_BYTES].tobytes() != (
        _preamble(dtype, shape)
    ):
        raise StoreError(
            f"{path} is damaged: it contradicts the header of the store, which says {dtype} "
            f"{list(shape)}; {REMEDY}"
        )
    return read_only(content[_PREAMBLE_BYTES:].view(dtype).reshape(shape))


def _write_header(
    directory: Path, schema: StoreSchema, columns: dict[str, str], offsets: dict[str, Counts]
) -> None:
    axes = _offset_names(offsets)
    names = [*columns.values(), *axes.values()]
    for name in names:
        _flush(directory / name)
    found = {name: Checksums.of(directory / name) for name in _checked_files(names)}
    blocks = [checksum for checksums in found.values() for checksum in checksums.blocks]
    _write_npy(directory / _CHECKSUMS, np.array(blocks, dtype=_CHECKSUM_DTYPE))
    _flush(directory / _CHECKSUMS)
    found[_CHECKSUMS] = Checksums.of(directory / _CHECKSUMS)
    header: dict[str, Any] = {
        "format": _FORMAT,
        "version": _VERSION,
        "num_graphs": len(next(iter(offsets.values()))) - 1,
        "schema": schema.to_json(),
        "columns": columns,
        "offsets": axes,
        "files": {
            name: {"bytes": checksums.num_bytes, "sha256": checksums.sha256}
            for name, checksums in found.items()
        },
    }
    header["digest"] = _digest(header)
    with (directory / _HEADER).open("w") as file:
        json.dump(header, file, indent=1)
        file.flush()
        os.fsync(file.fileno())


def _flush(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _digest(header: dict[str, Any]) -> str:
    facts = {name: value for name, value in header.items() if name != "digest"}
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _read_header(directory: Path) -> dict[str, Any]:
    path = directory / _HEADER
    if not path.is_file():
        raise StoreError(
            f"{directory} is not a graph store: it has no {_HEADER}; make one with "
            "GraphStore.build(dataset, directory)"
        )
    try:
        header = read_json(path)
    except Unreadable as error:
        raise StoreError(f"{path} is damaged ({error}); build the store again") from error
    if not isinstance(header, dict) or header.get("format") != _FORMAT:
        raise StoreError(f"{path} does not belong to a graph store; choose another directory")
    if header.get("version") != _VERSION:
        raise StoreError(
            f"{directory} has version {header.get('version')!r} and this is Torchkiln for version "
            f"{_VERSION}; build the store again"
        )
    if header.get("digest") != _digest(header):
        raise StoreError(f"{path} is damaged: its checksum is wrong; build the store again")
    return header
