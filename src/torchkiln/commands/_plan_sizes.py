"""Where `torchkiln plan` finds sizes: datasets by name, saved stores, and files of numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from torchkiln.core import OptionsError, StoreError, read_npy, read_npz, read_text

Sizes = dict[str, NDArray[np.int64]]
# Names of the columns of an array that has none.
_USUAL_AXES = ("nodes", "edges", "pairs")
_MAX_CSV_BYTES = 2_000_000_000  # a hundred million graphs


def read_sizes(
    dataset: str | None, sizes: Path | None, cutoff_angstrom: float | None
) -> tuple[str, Sizes]:
    """Return a title and the sizes that the command line names."""
    if (dataset is None) == (sizes is None):
        raise OptionsError(
            "say what to plan: --dataset qm9, --dataset DIRECTORY of a saved GraphStore, or "
            "--sizes FILE (.npy, .npz or .csv); one of them"
        )
    if sizes is not None:
        if cutoff_angstrom is not None:
            raise OptionsError("--cutoff_angstrom counts edges of a dataset; --sizes has its own")
        return sizes.name, read_size_file(sizes)
    assert dataset is not None
    if Path(dataset).is_dir():
        if cutoff_angstrom is not None:
            raise OptionsError("--cutoff_angstrom counts edges of qm9; a saved store has its own")
        from torchkiln.graphs import GraphStore

        return Path(dataset).name, GraphStore.open(dataset).sizes
    from torchkiln.datasets import load_sizes

    try:
        found = load_sizes(dataset, cutoff_angstrom=cutoff_angstrom)
    except OptionsError as error:
        raise OptionsError(f"{error}; nor is {dataset} a directory with a saved store") from error
    edges = "bonds" if cutoff_angstrom is None else f"edges up to {cutoff_angstrom:g} Å"
    return f"{dataset.upper()}, {edges}", found


def read_size_file(path: Path) -> Sizes:
    """Read a .npy ([n], [n, axes] or structured), a .npz by axis, or a .csv with a header."""
    if not path.is_file():
        raise OptionsError(f"there is no file {path}")
    readers = {".npy": _read_numpy, ".npz": _read_numpy, ".csv": _read_csv}
    if path.suffix not in readers:
        raise OptionsError(f"{path} is neither {', '.join(readers)}; save the sizes as one of them")
    return readers[path.suffix](path)


def _read_numpy(path: Path) -> Sizes:
    try:
        if path.suffix == ".npz":
            return read_npz(path)
        content = read_npy(path)
    except StoreError as error:
        raise OptionsError(f"{path} holds no plain array of numbers ({error})") from error
    if content.dtype.names is not None:
        return {axis: content[axis] for axis in content.dtype.names}
    columns = content[:, None] if content.ndim == 1 else content
    if columns.ndim != 2:
        raise OptionsError(
            f"{path} has shape {list(content.shape)}; wanted are [graphs] (nodes) or "
            "[graphs, axes] (nodes, edges, ...)"
        )
    names = [
        _USUAL_AXES[column] if column < len(_USUAL_AXES) else f"axis {column}"
        for column in range(columns.shape[1])
    ]
    return {axis: columns[:, column] for column, axis in enumerate(names)}


def _read_csv(path: Path) -> Sizes:
    text = read_text(path, error=OptionsError, max_bytes=_MAX_CSV_BYTES)
    header, *lines = text.splitlines() or [""]
    axes = [name.strip() for name in header.split(",")]
    if not all(name and not name.lstrip("-").isdigit() for name in axes):
        raise OptionsError(
            f"{path} must begin with the names of its axes, such as 'nodes,edges'; "
            f"its first line is {header!r}"
        )
    if len(set(axes)) < len(axes):
        raise OptionsError(f"{path} names an axis twice: {header!r}; give each a name of its own")
    rows = []
    for number, line in enumerate(lines, 2):
        if line.strip():
            rows.append(line.split(","))
            if len(rows[-1]) != len(axes):
                raise OptionsError(
                    f"{path} must hold {len(axes)} whole numbers in every line, one for each name, "
                    f"but line {number} is {line!r}"
                )
    try:
        values = np.array([[int(cell) for cell in row] for row in rows], dtype=np.int64)
    except (ValueError, OverflowError) as error:
        raise OptionsError(
            f"{path} must hold {len(axes)} whole numbers in every line ({error})"
        ) from error
    return {axis: values[:, i] for i, axis in enumerate(axes)} if len(rows) else {}
