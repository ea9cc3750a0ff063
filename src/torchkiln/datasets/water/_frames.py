"""Frames of water clusters from a stream of xyz text, some megabytes at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from torchkiln.core import StoreError

_BYTES_PER_READ = 1 << 24
# "O 1 2 3\n": no line of an atom is shorter.
_MIN_BYTES_PER_ATOM = 8
# Far above any cluster, far below what fills the memory before the first atom is read.
_MAX_ATOMS = 1_000_000
# What is longer without a whole cluster in it, is no xyz file.
_MAX_BYTES_PER_FRAME = 256 * _MAX_ATOMS


@dataclass(frozen=True, slots=True)
class Frames:
    """Clusters of one size.

    Attributes:
        z: Atomic numbers, [num_frames, num_atoms].
        pos: Coordinates in angstrom, [num_frames, num_atoms, 3].
        energies: kcal/mol, [num_frames].
    """

    z: NDArray[np.uint8]
    pos: NDArray[np.float64]
    energies: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.energies)

    @property
    def num_molecules(self) -> int:
        return int(self.z.shape[1]) // 3

    def where(self, chosen: NDArray[np.integer[Any]] | slice) -> Frames:
        """Return the chosen clusters."""
        return Frames(self.z[chosen], self.pos[chosen], self.energies[chosen])


def read_xyz_frames(
    stream: IO[bytes], label: str, *, num_molecules: int | None = None
) -> Iterator[Frames]:
    """Yield all clusters of an xyz file, those of one size together.

    Args:
        stream: The text, as bytes.
        label: What to call it in errors.
        num_molecules: Size that every cluster must have; None: any.

    Raises:
        StoreError: with the line, if it is not as it should be.
    """
    from torchkiln.datasets.water import _frame_kernels as kernels  # compiles: only where needed

    num_atoms = None if num_molecules is None else 3 * num_molecules
    if num_atoms is not None and num_atoms > _MAX_ATOMS:
        raise StoreError(
            f"{label} should have clusters of {num_molecules} molecules by its name; Torchkiln "
            f"reads up to {_MAX_ATOMS // 3:,}: rename it"
        )
    rest, line = b"", 1
    at_end = False
    while not at_end:
        more = stream.read(_BYTES_PER_READ)
        at_end = not more
        text = np.frombuffer(rest + (more or b"\n"), dtype=np.uint8)
        # The first frame tells the size; the kernel stops at once where there is none to expect.
        expected = num_atoms or 0
        while True:
            capacity = 1 + len(text) // (_MIN_BYTES_PER_ATOM * expected) if expected else 0
            z = np.empty((capacity, expected), dtype=np.uint8)
            pos = np.empty((capacity, expected, 3))
            energies = np.empty(capacity)
            reason, count, size, lines, bad = kernels.read_frames(text, expected, z, pos, energies)
            if count:
                frames = Frames(z[:count].copy(), pos[:count].copy(), energies[:count].copy())
                _require_water(frames, label, line)
                yield frames
            text = text[size:]
            if reason == kernels.OTHER_SIZE and num_atoms is None:
                line += lines
                expected = _other_size(_line_of(text, 0), label, line)
                if len(text) < _MIN_BYTES_PER_ATOM * expected:
                    break  # no room is made for atoms that cannot be here: read on, or it is cut
            elif reason == kernels.END:
                line += lines
                break
            else:
                found = _line_of(text, bad - lines)
                raise _error(reason, found, label, line + bad, num_atoms)
        rest = text.tobytes()
        if len(rest) > _MAX_BYTES_PER_FRAME:
            raise StoreError(
                f"{label}, line {line}: {len(rest) // 1_000_000} MB without the end of a cluster; "
                "this is no xyz file"
            )
    if rest.strip():
        missing = line + rest.count(b"\n")
        raise StoreError(
            f"{label}, line {missing}: the file ends in the middle of the cluster that begins in "
            f"line {line}; copy it again"
        )


def _other_size(text: str, label: str, line: int) -> int:
    word = text.split()[0].lower().replace("d", "e")  # as Fortran writes exponents
    try:
        count = int(float(word))
    except (ValueError, OverflowError):
        raise StoreError(
            f"{label}, line {line}: expected the number of atoms of the next cluster, found "
            f"{text[:80]!r}"
        ) from None
    if count % 3 or count > _MAX_ATOMS:
        raise StoreError(
            f"{label}, line {line}: {count} atoms are no water cluster; their number must be a "
            f"multiple of 3, at most {_MAX_ATOMS:,}"
        )
    return count


def _require_water(frames: Frames, label: str, first_line: int) -> None:
    """Refuse frames that do not have two hydrogens for each oxygen."""
    oxygens = (frames.z == 8).sum(axis=1)
    wrong = np.flatnonzero(oxygens != frames.num_molecules)
    if len(wrong):
        line = first_line + int(wrong[0]) * (frames.z.shape[1] + 2)
        raise StoreError(
            f"{label}, frame near line {line}: {oxygens[wrong[0]]} oxygens among "
            f"{frames.z.shape[1]} atoms are no water cluster; leave the frame out"
        )


def _line_of(text: NDArray[np.uint8], number: int) -> str:
    start = text[: 1 << 16].tobytes().split(b"\n")
    return start[number].decode(errors="replace").strip() if number < len(start) else ""


def _error(reason: int, found: str, label: str, line: int, num_atoms: int | None) -> StoreError:
    from torchkiln.datasets.water import _frame_kernels as kernels

    wanted = {
        kernels.OTHER_SIZE: f"{num_atoms} atoms, as the name of the file says",
        kernels.BAD_COUNT: "the number of atoms of the next cluster",
        kernels.BAD_ENERGY: "a comment that ends with the energy in kcal/mol",
        kernels.BAD_ATOM: "an atom, O or H, and its coordinates",
        kernels.BAD_POSITION: "an atom with three coordinates in angstrom",
    }[reason]
    return StoreError(f"{label}, line {line}: expected {wanted}, found {found[:80]!r}")
