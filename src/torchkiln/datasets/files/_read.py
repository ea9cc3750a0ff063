"""`read_molecules`: structures from the files that people have."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from torchkiln.core import StoreError
from torchkiln.datasets.files._builder import MoleculeBuilder
from torchkiln.datasets.files._published_xyz import is_published_xyz, read_published_xyz
from torchkiln.datasets.files._sdf import read_sdf
from torchkiln.datasets.files._text_lines import TextLines, open_lines
from torchkiln.datasets.files._xyz import read_xyz
from torchkiln.datasets.molecules._molecules import Molecules

_READERS: dict[str, Callable[[TextLines, MoleculeBuilder], None]] = {
    ".xyz": read_xyz,
    ".extxyz": read_xyz,
    ".sdf": read_sdf,
    ".sd": read_sdf,
    ".mol": read_sdf,
}
MOLECULE_SUFFIXES = tuple(_READERS)


def read_molecules(path: str | os.PathLike[str], *, progress: bool = False) -> Molecules:
    """Return the molecules of an xyz, extended xyz, SDF or mol file, packed by gzip or not.

    Numbers that the file gives for molecules become targets, as they stand there: `energy=` and
    other keys of extended xyz (`energy` also for a comment that is just a number), data fields of
    SDF. NaN stands where a molecule lacks one. The xyz files that QM9 was published as have its
    targets, in the units of PyG.

    Args:
        path: The file; its suffix tells the format.
        progress: Whether to show a progress bar.

    Raises:
        StoreError: naming file and line, if something is not as it should be.
    """
    file = Path(path)
    suffix = Path(file.name.lower().removesuffix(".gz")).suffix
    if suffix not in _READERS:
        known = ", ".join(MOLECULE_SUFFIXES)
        raise StoreError(
            f"{file} has the unknown suffix {suffix!r}; known are {known}, each also with .gz"
        )
    if suffix == ".xyz" and is_published_xyz(file):
        return read_published_xyz([file], source=str(file), progress=False)
    builder = MoleculeBuilder()
    with open_lines(file, progress=progress) as lines:
        _READERS[suffix](lines, builder)
    if not len(builder):
        raise StoreError(f"{file} holds no molecules")
    return builder.finish(source=str(file))
