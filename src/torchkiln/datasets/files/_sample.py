"""Some well-known molecules that come with the package, to try things out with."""

from __future__ import annotations

import os
from pathlib import Path

from torchkiln.core import OptionsError, write_atomic
from torchkiln.datasets.files._read import read_molecules
from torchkiln.datasets.molecules._molecules import Molecules

_SAMPLE = Path(__file__).with_name("sample_molecules.extxyz")


def sample_molecules() -> Molecules:
    """Return some well-known small molecules of H, C, N, O and F, with names and geometries.

    The geometries are those of the G2 test set (MP2/6-31G(d)). There are no targets: the molecules
    are meant for trying out `torchkiln predict` and everything else that takes molecules.
    """
    return read_molecules(_SAMPLE)


def write_sample(path: str | os.PathLike[str], *, force: bool = False) -> Path:
    """Write the molecules of `sample_molecules` as an extended xyz file, and return its path.

    Raises:
        OptionsError: if another file stands there and `force` is not set, if the suffix is not one
            that `read_molecules` reads as xyz.
        WriteError: if the file cannot be written.
    """
    file = Path(path)
    content = _SAMPLE.read_bytes()
    if file.suffix.lower() not in (".xyz", ".extxyz"):
        raise OptionsError(f"{file} must end in .xyz or .extxyz, since it is an extended xyz file")
    if file.exists() and not force and file.read_bytes() != content:
        raise OptionsError(
            f"{file} exists and is another file; name another one, or pass --force to replace it"
        )
    write_atomic(file, content)
    return file
