"""A store as a directory: one .npy file per column, and a header that is written last.

    store.json            schema, sizes and checksums
    00-x.npy ...          columns
    offsets-nodes.npy ... where each graph begins on an axis

The directory is made under a temporary name and renamed when it is complete, so there is never a
part of a store to open. Nothing in it is ever executed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, final

import numpy as np

from torchkiln.core import StoreError, sha256_file
from torchkiln.graphs.store._axes import Counts
from torchkiln.graphs.store._columns import (
    Array,
    Columns,
    column_dtype,
    column_length,
    column_shape,
    feed,
    read_only,
)
from torchkiln.graphs.store._flatten import Flattener
from torchkiln.graphs.store._schema import StoreSchema

_FORMAT = "torchkiln graph store"
_VERSION = 1
_HEADER = "store.json"
# The first bytes of a .npy file, reserved before the shape is known; a multiple of 64, so that the
# numbers after it are aligned.
_PREAMBLE_BYTES = 192


def save_columns(columns: Columns, directory: Path, *, overwrite: bool) -> None:
    """Write all columns to a new directory."""
    with _building(directory, overwrite=overwrite) as temporary:
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
            rows.append(_RowFile(temporary / f"row-{len(rows)}.tmp"))
            stack.callback(rows[-1].file.close)
            return rows[-1]

        flattener = Flattener(open_sink, exclude_keys, levels)
        feed(flattener, graphs, progress=progress)
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
        Columns(
            flat.schema,
            flat.offsets,
            {name: _map(temporary / files[name]) for name, _ in flat.schema.stored()},
        ).check_edges()
        _write_header(temporary, flat.schema, files, flat.offsets)


def open_columns(directory: Path, *, verify: bool) -> tuple[Columns, str]:
    """Map a directory into memory; return its columns and the digest of its header.

    Raises:
        StoreError: It is not a store, of another version, or damaged.
    """
    header = _read_header(directory)
    remedy = "build the store again (GraphStore.build(..., overwrite=True))"
    for name, facts in header["files"].items():
        path = directory / name
        size = path.stat().st_size if path.is_file() else None
        if size != facts["bytes"]:
            found = "is missing" if size is None else f"has {size} bytes"
            raise StoreError(f"{path} {found} instead of {facts['bytes']} bytes; {remedy}")
        if verify and sha256_file(path) != facts["sha256"]:
            raise StoreError(f"{path} is damaged: its checksum is not that of the header; {remedy}")
    try:
        schema = StoreSchema.from_json(header["schema"])
        offsets = {axis: _map(directory / name) for axis, name in header["offsets"].items()}
        arrays = {name: _map(directory / header["columns"][name]) for name, _ in schema.stored()}
        columns = Columns(schema, offsets, arrays)
        fits = _fits(columns)
    except (KeyError, TypeError, ValueError, OSError) as error:
        raise StoreError(f"{directory} is damaged ({error}); {remedy}") from error
    if not fits:
        raise StoreError(f"{directory} is damaged: its columns contradict its header; {remedy}")
    return columns, header["digest"]


def _fits(columns: Columns) -> bool:
    """Tell whether everything that kernels read lies inside the columns."""
    num_graphs = columns.num_graphs
    for offsets in columns.offsets.values():
        if offsets.dtype != np.int64 or offsets.shape != (num_graphs + 1,) or num_graphs < 1:
            return False
        if offsets[0] != 0 or (np.diff(offsets) < 0).any():
            return False
    return all(
        columns.arrays[name].dtype == column_dtype(attribute)
        and columns.arrays[name].shape
        == column_shape(attribute, column_length(attribute, columns.offsets, num_graphs))
        for name, attribute in columns.schema.stored()
    )


@final
class _RowFile:
    """One row of a column that grows; the first one becomes the .npy file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file: BinaryIO = path.open("w+b")
        self.file.write(bytes(_PREAMBLE_BYTES))

    def write(self, data: bytes) -> None:
        self.file.write(data)

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
    if directory.exists() and not directory.is_dir():
        raise StoreError(f"{directory} is a file, so it is not replaced; choose a directory")
    if directory.exists() and not overwrite:
        raise StoreError(f"{directory} exists already; pass overwrite=True to replace it")
    if directory.is_dir() and any(directory.iterdir()) and not (directory / _HEADER).is_file():
        raise StoreError(f"{directory} is not a graph store, so it is not replaced; choose another")
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        made = tempfile.mkdtemp(dir=directory.parent, prefix=f".{directory.name}.", suffix=".tmp")
    except OSError as error:
        raise StoreError(
            f"cannot write below {directory.parent} ({error}); choose another directory"
        ) from error
    temporary = Path(made)
    try:
        yield temporary
        # mkdtemp makes private directories; a store follows the user's umask.
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o777 & ~umask)
        _move(temporary, directory, overwrite=overwrite)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _move(temporary: Path, directory: Path, *, overwrite: bool) -> None:
    """Give a complete store its name; what had the name is deleted, if it may be."""
    old = temporary.with_suffix(".old")
    try:
        if overwrite:
            with contextlib.suppress(FileNotFoundError):
                directory.rename(old)
        # The system refuses to replace a directory that is not empty.
        temporary.rename(directory)
    except OSError as error:
        raise StoreError(
            f"another process wrote {directory} meanwhile ({error}); open that, or build again "
            "with overwrite=True"
        ) from error
    finally:
        shutil.rmtree(old, ignore_errors=True)


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
        array.tofile(file)


def _preamble(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    fields = {"descr": dtype.str, "fortran_order": False, "shape": tuple(map(int, shape))}
    magic = np.lib.format.magic(1, 0)
    length = _PREAMBLE_BYTES - len(magic) - 2
    text = repr(fields).encode("latin1").ljust(length - 1) + b"\n"
    assert len(text) == length, f"shape {shape} is too long for the preamble of a .npy file"
    return magic + length.to_bytes(2, "little") + text


def _map(path: Path) -> Array:
    # A plain array over the mapping: Numba does not know NumPy's own class for it.
    return read_only(np.asarray(np.load(path, mmap_mode="r", allow_pickle=False)))


def _write_header(
    directory: Path, schema: StoreSchema, columns: dict[str, str], offsets: dict[str, Counts]
) -> None:
    axes = _offset_names(offsets)
    names = [*columns.values(), *axes.values()]
    for name in names:
        with (directory / name).open("rb") as file:
            os.fsync(file.fileno())
    header: dict[str, Any] = {
        "format": _FORMAT,
        "version": _VERSION,
        "num_graphs": len(next(iter(offsets.values()))) - 1,
        "schema": schema.to_json(),
        "columns": columns,
        "offsets": axes,
        "files": {
            name: {
                "bytes": (directory / name).stat().st_size,
                "sha256": sha256_file(directory / name),
            }
            for name in names
        },
    }
    header["digest"] = _digest(header)
    with (directory / _HEADER).open("w") as file:
        json.dump(header, file, indent=1)
        file.flush()
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
        header = json.loads(path.read_text())
    except ValueError as error:
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
