"""The tables of the `qm9pack` package, read by path: importing it needs packages that are gone."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from torchkiln.core import StoreError
from torchkiln.datasets.molecules._published_targets import NUM_PROPERTIES
from torchkiln.datasets.qm9._smiles import ATOMIC_NUMBERS

# One table in three files; molecules in the order of their numbers.
PARTS = ("qm9_part1.csv", "qm9_part2.csv", "qm9_part3.csv")
_HEADER = (
    "XYZ_file,Index,SMILES,InChi,N_atoms,Stoichiometry,Elements,XYZ_Ang,Mulliken_pop,"
    "Harmonic_Freq_cmi,RotA_GHz,RotB_GHz,RotC_GHz,Dipole_debye,Polarizability_bohr3,HOMO_au,"
    "LUMO_au,HOMO_LUMO_gap_au,R2_bohr2,ZPVE_au,InternalEnergy_0K_au,InternalEnergy_298K_au,"
    "Enthalphy_298K_au,GibbsFreeEnergy_298K_au,Heatcapacity_Cv_cal_mol_K"
)
_ROWS_PER_CHUNK = 8192
_MAX_HEADER = 4096
_MAX_ATOMS = 255  # bonds count the atoms of a molecule in bytes; QM9 has up to 29


@dataclass(frozen=True, slots=True)
class MoleculeTable:
    """Molecules as they stand in the tables, atoms of all molecules one after the other.

    Attributes:
        index: Number of each molecule in QM9, counted from 1.
        smiles: Its SMILES.
        offsets: Where its atoms begin and end, [num_molecules + 1].
        z: Atomic numbers, [num_atoms].
        pos: Coordinates in angstrom, [num_atoms, 3].
        properties: Rotational constants A, B, C, then dipole moment to heat capacity, in the
            units of the table, [num_molecules, 15].
    """

    index: NDArray[np.int64]
    smiles: list[str]
    offsets: NDArray[np.int64]
    z: NDArray[np.uint8]
    pos: NDArray[np.float64]
    properties: NDArray[np.float64]


def find_source(folder: Path | None = None) -> Path:
    """Return the folder with the tables: `folder` itself, or that of the installed package.

    Raises:
        StoreError: if the package or one of its files is missing.
    """
    if folder is None:
        folder = _installed_folder()
    for name in PARTS:
        if not (folder / name).is_file():
            raise StoreError(
                f"{folder} holds no {name}; it must contain the tables of qm9pack: "
                f"{', '.join(PARTS)}"
            )
    return folder


def _installed_folder() -> Path:
    package = importlib.util.find_spec("qm9pack")
    if package is None or package.origin is None:
        raise StoreError(
            "QM9 comes from the package qm9pack, which is not installed: "
            "`pip install qm9pack` or `pip install torchkiln[qm9]`, or name a folder with "
            f"{', '.join(PARTS)} (--source)"
        )
    return Path(package.origin).parent / "data"


def read_chunks(folder: Path) -> Iterator[MoleculeTable]:
    """Yield the molecules of the tables in `folder`, some thousand at a time."""
    for name in PARTS:
        path = folder / name
        line = 1
        try:
            with path.open(encoding="utf-8") as file:
                header = file.readline(_MAX_HEADER).strip()
                if header != _HEADER:
                    raise StoreError(
                        f"{path} has the columns {header[:200]!r}, expected {_HEADER!r}"
                    )
                line = 2
                while rows := list(islice(file, _ROWS_PER_CHUNK)):
                    yield _read_chunk(rows, path, line)
                    line += len(rows)
        except (OSError, UnicodeDecodeError) as error:
            raise StoreError(
                f"{path}, after line {line}: cannot be read ({error}); install qm9pack anew"
            ) from error


def _read_chunk(rows: list[str], path: Path, line: int) -> MoleculeTable:
    """Read rows together, which is fast; if something is wrong, one by one to tell the line."""
    # A number that is cut in the middle is still a number; only the missing end of line tells.
    if not rows[-1].endswith("\n"):
        raise StoreError(
            f"{path}, line {line + len(rows) - 1}: the file is cut off; install qm9pack anew"
        )
    try:
        return _read_rows(rows, f"{path}, lines {line} to {line + len(rows) - 1}")
    except StoreError:
        for number, row in enumerate(rows, line):
            _read_rows([row], f"{path}, line {number}")
        raise


def _read_rows(rows: list[str], where: str) -> MoleculeTable:
    # Texts are quoted and contain no quotes, so the odd pieces are texts and the even ones numbers:
    # 1 file, 3 SMILES, 5 InChI, 7 stoichiometry, 9 elements, 11 coordinates, 13 charges,
    # 15 frequencies; 2 number, 6 atoms, 16 properties.
    pieces = [row.rstrip("\n").split('"') for row in rows]
    # Numbers of all rows are read as one list: a row with more or fewer would shift the others.
    if any(
        len(row) != 17
        or row[16].count(",") != NUM_PROPERTIES
        or row[2].count(",") + row[6].count(",") != 4
        for row in pieces
    ):
        raise StoreError(f"{where}: a row is cut or has other columns; install qm9pack anew")
    counts = _whole_numbers((row[6][1:-1] for row in pieces), where, most=_MAX_ATOMS)
    symbols = ",".join(row[9] for row in pieces).encode().translate(None, b"[]',")
    offsets = np.concatenate([[0], np.cumsum(counts)])
    pos = _numbers((row[11].translate(_NO_BRACKETS) for row in pieces), 3, where)
    z = _ATOMIC_NUMBER_OF[np.frombuffer(symbols, dtype=np.uint8)]
    if len(z) != offsets[-1] or len(pos) != offsets[-1] or not z.all():
        raise StoreError(
            f"{where}: {offsets[-1]} atoms are announced, with {len(z)} elements (H, C, N, O, F) "
            f"and {len(pos)} positions; install qm9pack anew"
        )
    return MoleculeTable(
        index=_whole_numbers((row[2][1:-1] for row in pieces), where, most=2**31),
        smiles=[row[3] for row in pieces],
        offsets=offsets,
        z=z,
        pos=pos,
        properties=_numbers((row[16][1:] for row in pieces), NUM_PROPERTIES, where),
    )


_NO_BRACKETS = str.maketrans("", "", "[]")
_ATOMIC_NUMBER_OF = np.zeros(256, dtype=np.uint8)
for _symbol, _number in ATOMIC_NUMBERS.items():
    _ATOMIC_NUMBER_OF[ord(_symbol)] = _number


def _whole_numbers(texts: Iterator[str], where: str, *, most: int) -> NDArray[np.int64]:
    """Return one whole number a row, from 1 on."""
    numbers = _numbers(texts, 1, where)[:, 0]
    wrong = numbers[(numbers < 1) | (numbers > most) | (numbers != np.floor(numbers))]
    if len(wrong):
        raise StoreError(
            f"{where}: {wrong[0]:g} is no number of atoms or of a molecule; install qm9pack anew"
        )
    return numbers.astype(np.int64)


def _numbers(texts: Iterator[str], columns: int, where: str) -> NDArray[np.float64]:
    """Return numbers separated by commas as rows of `columns`."""
    with warnings.catch_warnings():
        # NumPy only warns about text that is no number, and stops there.
        warnings.simplefilter("error", DeprecationWarning)
        try:
            numbers = np.fromstring(",".join(texts), sep=",").reshape(-1, columns)
        except (DeprecationWarning, ValueError) as error:
            raise StoreError(f"{where}: not a table of numbers; install qm9pack anew") from error
    if not np.isfinite(numbers).all():
        raise StoreError(f"{where}: a number is not finite; install qm9pack anew")
    return numbers
