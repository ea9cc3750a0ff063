"""`Molecules`: geometries and properties as flat arrays, whatever file they came from."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchkiln.core import OptionsError, StoreError


@dataclass(frozen=True, slots=True, eq=False)
class Molecules:
    """Molecules in a row, the atoms of all of them one after the other.

    Arrays are converted to the stated dtypes and checked when an object is made; they are not
    copied where they fit already, so do not change them afterwards.

    Attributes:
        offsets: Where the atoms of each molecule begin and end, int64 [num_molecules + 1].
        z: Atomic numbers from 1, uint8 [num_atoms].
        pos: Coordinates in angstrom, float64 [num_atoms, 3].
        names: A name for each molecule, or None.
        targets: Properties by name, in physical units, float64 [num_molecules] each; may be empty.
        source: Where the molecules came from, for people to read.
        units: Of those targets whose unit is certain, by name. The files that people have do not
            say in which unit they are.
        unread: Names of labels that the files have and `targets` has not, such as forces: labels
            that are not one number for each molecule.
    """

    offsets: NDArray[np.int64]
    z: NDArray[np.uint8]
    pos: NDArray[np.float64]
    names: list[str] | None = None
    targets: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    source: str = ""
    units: Mapping[str, str] = field(default_factory=dict)
    unread: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        convert: dict[str, Any] = {
            "offsets": np.ascontiguousarray(self.offsets, dtype=np.int64),
            "z": _atomic_numbers(self.z, self.source),
            "pos": np.ascontiguousarray(self.pos, dtype=np.float64),
            "targets": {
                name: np.ascontiguousarray(values, dtype=np.float64)
                for name, values in self.targets.items()
            },
        }
        for name, value in convert.items():
            object.__setattr__(self, name, value)
        self._check_sizes()
        self._check_values()

    def _check_sizes(self) -> None:
        where = f" ({self.source})" if self.source else ""
        offsets, num_atoms = self.offsets, len(self.z)
        if offsets.ndim != 1 or not len(offsets) or offsets[0] != 0 or offsets[-1] != num_atoms:
            raise StoreError(
                f"offsets must run from 0 to the number of atoms, {num_atoms}, but are "
                f"{_short(offsets)}{where}"
            )
        if self.pos.shape != (num_atoms, 3):
            raise StoreError(
                f"pos has shape {list(self.pos.shape)} for {num_atoms} atoms; wanted is "
                f"[{num_atoms}, 3]{where}"
            )
        empty = np.flatnonzero(np.diff(offsets) < 1)
        if len(empty):
            raise StoreError(f"molecule {empty[0]}{self._name_of(empty[0])} has no atoms{where}")
        if self.names is not None and len(self.names) != len(self):
            raise StoreError(f"{len(self.names)} names for {len(self)} molecules{where}")
        for name, values in self.targets.items():
            if values.shape != (len(self),):
                raise StoreError(
                    f"target {name!r} has shape {list(values.shape)} for {len(self)} molecules; "
                    f"wanted is one number each{where}"
                )

    def _check_values(self) -> None:
        if not np.isfinite(self.pos).all():
            atom = int(np.flatnonzero(~np.isfinite(self.pos).all(axis=1))[0])
            molecule = int(np.searchsorted(self.offsets, atom, side="right")) - 1
            where = f" ({self.source})" if self.source else ""
            raise StoreError(
                f"atom {atom - self.offsets[molecule]} of molecule {molecule}"
                f"{self._name_of(molecule)} has the coordinates {self.pos[atom].tolist()}; "
                f"leave the molecule out{where}"
            )

    def _name_of(self, molecule: int | np.integer[Any]) -> str:
        if self.names is None or len(self.names) <= molecule:
            return ""
        return f" ({self.names[int(molecule)]})"

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def num_atoms(self) -> NDArray[np.int64]:
        """Atoms of each molecule."""
        return np.diff(self.offsets)

    @property
    def elements(self) -> list[int]:
        """Atomic numbers that occur, in order."""
        return np.flatnonzero(np.bincount(self.z, minlength=1)).tolist()

    def first(self, count: int) -> Molecules:
        """Return the first `count` molecules, as views."""
        if not 0 <= count <= len(self):
            raise OptionsError(f"cannot take the first {count} of {len(self)} molecules")
        atoms = int(self.offsets[count])
        return dataclasses.replace(
            self,
            offsets=self.offsets[: count + 1],
            z=self.z[:atoms],
            pos=self.pos[:atoms],
            names=None if self.names is None else self.names[:count],
            targets={name: values[:count] for name, values in self.targets.items()},
        )

    def take(self, indices: Any) -> Molecules:
        """Return the molecules with these numbers, in this order."""
        chosen = np.asarray(indices, dtype=np.int64)
        if chosen.ndim != 1 or (len(chosen) and not -1 < chosen.min() <= chosen.max() < len(self)):
            raise OptionsError(
                f"molecules are taken by numbers from 0 to {len(self) - 1}, got {_short(chosen)}"
            )
        sizes = self.num_atoms[chosen]
        offsets = to_offsets(sizes)
        atoms = np.repeat(self.offsets[chosen] - offsets[:-1], sizes) + np.arange(offsets[-1])
        return dataclasses.replace(
            self,
            offsets=offsets,
            z=self.z[atoms],
            pos=self.pos[atoms],
            names=None if self.names is None else [self.names[i] for i in chosen.tolist()],
            targets={name: values[chosen] for name, values in self.targets.items()},
        )

    def with_targets(
        self, targets: Mapping[str, Any], units: Mapping[str, str] | None = None
    ) -> Molecules:
        """Return the same molecules with these targets besides their own, which they replace.

        Args:
            targets: By name.
            units: Of those whose unit is certain; the old unit of a replaced target does not count.
        """
        kept = {name: unit for name, unit in self.units.items() if name not in targets}
        return dataclasses.replace(
            self, targets={**self.targets, **targets}, units={**kept, **(units or {})}
        )

    def __repr__(self) -> str:
        source = f" from {self.source}" if self.source else ""
        return f"Molecules({len(self):,} molecules, {len(self.z):,} atoms{source})"


def join_molecules(parts: Sequence[Molecules], *, source: str) -> Molecules:
    """Return all molecules in a row; a target that a part lacks is NaN there.

    Parts without names give those of their source, numbered where it has several molecules.
    """
    keys = dict.fromkeys(key for part in parts for key in part.targets)
    return Molecules(
        offsets=to_offsets(np.concatenate([part.num_atoms for part in parts])),
        z=np.concatenate([part.z for part in parts]),
        pos=np.concatenate([part.pos for part in parts]),
        names=[name for part in parts for name in part.names or _names_by_source(part)],
        targets={
            key: np.concatenate(
                [part.targets.get(key, np.full(len(part), np.nan)) for part in parts]
            )
            for key in keys
        },
        source=source,
        units=_common_units(parts),
        unread=tuple(dict.fromkeys(label for part in parts for label in part.unread)),
    )


def _common_units(parts: Sequence[Molecules]) -> dict[str, str]:
    """Return the units that are the same in every part that has the target."""
    found: dict[str, set[str]] = {}
    for part in parts:
        for name in part.targets:
            found.setdefault(name, set()).add(part.units.get(name, ""))
    return {
        name: next(iter(units))
        for name, units in found.items()
        if len(units) == 1 and units != {""}
    }


def _names_by_source(part: Molecules) -> list[str]:
    stem = Path(part.source).stem
    return [stem] if len(part) == 1 else [f"{stem} {number}" for number in range(1, len(part) + 1)]


def to_offsets(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where pieces of these sizes begin and end in a row."""
    offsets = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return offsets


def _atomic_numbers(z: Any, source: str) -> NDArray[np.uint8]:
    numbers = np.asarray(z)
    if numbers.size and not 0 < numbers.min() <= numbers.max() <= 118:
        wrong = numbers[(numbers < 1) | (numbers > 118)][0]
        where = f" ({source})" if source else ""
        raise StoreError(f"{wrong} is not an atomic number; elements have 1 to 118{where}")
    return np.ascontiguousarray(numbers, dtype=np.uint8)


def _short(values: NDArray[Any]) -> str:
    return np.array2string(values, threshold=6)
