"""Molecules from whatever the user has: tables, a root of PyG's QM9, files of structures."""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

from torchkiln.core import StoreError, warn_user
from torchkiln.core._progress import progress_bar
from torchkiln.datasets.files._kept import kept_molecules
from torchkiln.datasets.files._published_xyz import is_published_xyz, read_published_xyz
from torchkiln.datasets.files._read import MOLECULE_SUFFIXES, read_molecules
from torchkiln.datasets.files._target_table import read_target_table, table_beside, with_table
from torchkiln.datasets.molecules._molecules import Molecules, join_molecules
from torchkiln.datasets.molecules._published_targets import QM9_TARGETS, QM9_UNITS
from torchkiln.datasets.qm9._arrays import qm9_arrays
from torchkiln.datasets.qm9._manifest import require_unchanged
from torchkiln.datasets.qm9._molecules import to_molecules
from torchkiln.datasets.qm9._source import PARTS

if TYPE_CHECKING:
    from torch import Tensor

_SDF = "gdb9.sdf"
_LEFT_OUT = "uncharacterized.txt"
_PROCESSED = Path("processed") / "data_v3.pt"
_FORMS = (
    f"the tables of qm9pack ({PARTS[0]}, ...), a root of PyG's QM9 (raw/{_SDF} and raw/{_SDF}.csv, "
    f"or {_PROCESSED}), the published xyz files of QM9, or files of structures "
    f"({', '.join(MOLECULE_SUFFIXES)})"
)


def molecules_in(root: Path, *, progress: bool = True) -> Molecules:
    """Return the molecules of a file or folder, with their targets; see `qm9_molecules`.

    Raises:
        StoreError: if there is nothing to read, or a file is damaged.
    """
    if root.is_file():
        return _read_files([root], str(root), progress=progress)
    if not root.is_dir():
        raise StoreError(
            f"there is no file or folder {root}; name one with {_FORMS}, or none (root=None) for "
            "the installed qm9pack"
        )
    if any((root / name).is_file() for name in PARTS):
        return to_molecules(qm9_arrays(root, progress=progress), str(root))
    for folder in (root / "raw", root):
        if (folder / _SDF).is_file():
            return _read_published(folder, progress=progress)
    if (root / _PROCESSED).is_file():
        return _read_processed(root / _PROCESSED)
    files = sorted(path for path in root.iterdir() if _has_structures(path))
    if not files:
        raise StoreError(f"{root} holds nothing to read; wanted are {_FORMS}")
    if is_published_xyz(files[0]):
        everything = kept_molecules(
            files, lambda: read_published_xyz(files, source=str(root), progress=progress)
        )
        return _without_left_out(everything, root)
    return _read_files(files, str(root), progress=progress)


def _has_structures(path: Path) -> bool:
    name = path.name.lower().removesuffix(".gz")
    return path.is_file() and name.endswith(MOLECULE_SUFFIXES)


def _read_files(
    files: list[Path],
    source: str,
    *,
    progress: bool,
    check: Callable[[], None] = lambda: None,
) -> Molecules:
    """Read structures, each file with the table beside it; `check` comes before."""
    tables = [table_beside(path) for path in files]

    def read_one(path: Path, table: Path | None) -> Molecules:
        molecules = read_molecules(path, progress=progress and len(files) == 1)
        return molecules if table is None else with_table(molecules, read_target_table(table))

    def read() -> Molecules:
        check()
        several = progress_bar(
            zip(files, tables, strict=True),
            total=len(files),
            desc=f"Reading {Path(source).name}",
            unit=" files",
            show=progress and len(files) > 1,
        )
        parts = [read_one(path, table) for path, table in several]
        return parts[0] if len(parts) == 1 else join_molecules(parts, source=source)

    return kept_molecules([*files, *(table for table in tables if table is not None)], read)


def _read_published(folder: Path, *, progress: bool) -> Molecules:
    """Read gdb9.sdf, its table, and the list of molecules that are left out."""
    path = folder / _SDF
    if table_beside(path) is None:
        raise StoreError(f"{path} has no targets: {path}.csv is missing")

    def check(*names: str) -> None:
        if folder.name == "raw":
            require_unchanged(folder.parent, [f"raw/{name}" for name in names])

    check(_LEFT_OUT)
    with warnings.catch_warnings():
        # Those that `torchkiln data qm9` wrote, in the place of molecules left out.
        warnings.filterwarnings("ignore", message=".*records have no atoms")
        molecules = _read_files(
            [path], str(path), progress=progress, check=lambda: check(_SDF, f"{_SDF}.csv")
        )
    if molecules.names is None:
        raise StoreError(f"{path} has records without names; those of QM9 are gdb_1, gdb_2, ...")
    return _without_left_out(molecules, folder)


def _without_left_out(molecules: Molecules, folder: Path) -> Molecules:
    left_out = _read_left_out(folder / _LEFT_OUT)
    names = molecules.names or []
    return molecules.take([i for i, name in enumerate(names) if name not in left_out])


def _read_left_out(path: Path) -> set[str]:
    """Return the names of molecules that failed the consistency check of QM9's authors."""
    if not path.is_file():
        warn_user(
            f"there is no {path}: the 3,054 molecules that QM9's authors found inconsistent are "
            "not left out"
        )
        return set()
    # As PyG reads it: nine lines of explanation before the list, one with the sum after it.
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}; copy it again") from error
    lines = text.split("\n")[9:-2]
    names = set()
    for number, line in enumerate(lines, 10):
        if not line.split() or not line.split()[0].isdecimal():
            raise StoreError(
                f"{path}, line {number}: the number of a molecule wanted, not {line!r}"
            )
        names.add(f"gdb_{line.split()[0]}")
    return names


def _require_held(tensors: Sequence[Tensor], path: Path) -> None:
    """Raise for tensors larger than their file: a few bytes can be viewed as any number."""
    size = path.stat().st_size
    if sum(tensor.numel() * tensor.element_size() for tensor in tensors) > size:
        raise ValueError(f"tensors claim more than the {size:,} bytes of the file")


def _require_checksums(file: IO[bytes]) -> None:
    """Raise if a part of torch's archive does not have its checksum, which torch does not ask."""
    with zipfile.ZipFile(file) as archive:
        damaged = archive.testzip()
    if damaged is not None:
        raise ValueError(f"{damaged} in it does not have its checksum")
    file.seek(0)


def _read_processed(path: Path) -> Molecules:
    """Read what PyG keeps of QM9, in its units; float32, so energies are rounded to a milli-eV."""
    import torch
    import torch_geometric.data  # noqa: F401 - tells torch that its classes may be in a file

    try:
        with path.open("rb") as file:
            _require_checksums(file)
            # Tensors and nothing else: a pickle that would run code is refused.
            values, slices = torch.load(file, weights_only=True)[:2]
        _require_held([*(values[key] for key in ("y", "z", "pos")), slices["z"]], path)
        y = values["y"].double().numpy()
        offsets = slices["z"].numpy()
        names = values.get("name")
        molecules = Molecules(
            offsets=offsets,
            z=values["z"].numpy(),
            pos=values["pos"].double().numpy(),
            names=None if names is None else list(names),
            targets={target: y[:, column] for target, (column, _) in QM9_TARGETS.items()},
            source=str(path),
            units=QM9_UNITS,
        )
    except Exception as error:  # a damaged file or one of another kind lets torch raise anything
        # torch's own words would advise to run what is in the file.
        raise StoreError(
            f"{path} is cut off or not what PyG's QM9 writes, which is tensors "
            f"({type(error).__name__}); delete it, or make it anew with `torchkiln data qm9 "
            f"--root {path.parent.parent} --force`"
        ) from error
    warn_user(
        f"{path} has energies in float32, exact to about a milli-electronvolt; with raw/{_SDF} and "
        f"raw/{_SDF}.csv beside it, or with qm9pack, they are exact"
    )
    return molecules
