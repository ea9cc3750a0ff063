"""From physical values to what a network learns, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchkiln.core import OptionsError, StoreError, to_choice
from torchkiln.core._near_miss import did_you_mean
from torchkiln.datasets.molecules._element_counts import NUM_ELEMENTS, count_elements
from torchkiln.datasets.molecules._molecules import Molecules
from torchkiln.datasets.molecules._published_targets import (
    ATOM_REFERENCES_EV,
    find_target,
)

Values = NDArray[np.float64]
_REFERENCES = ("none", "atoms", "fitted")


@dataclass(frozen=True, slots=True)
class TargetTransform:
    """What is done to a target before training: references off, per atom, standardised.

    Everything is computed in float64: total energies are thousands of eV, of which the last
    thousandths matter.

    Attributes:
        target: Name of the property.
        unit: Of its physical values; empty if unknown.
        references: Energy of each element, subtracted for every atom; empty: nothing is.
        per_atom: Whether what is left is divided by the number of atoms.
        mean: Subtracted then.
        std: Divided by at last.
    """

    target: str
    unit: str = ""
    references: Mapping[int, float] = field(default_factory=dict)
    per_atom: bool = False
    mean: float = 0.0
    std: float = 1.0

    def __post_init__(self) -> None:
        if not (np.isfinite(self.mean) and 0 < self.std < np.inf):
            raise OptionsError(
                f"mean must be a number and std a positive one, got {self.mean!r} and {self.std!r}"
            )

    @classmethod
    def fit(
        cls,
        molecules: Molecules,
        target: str,
        train_indices: Any,
        *,
        references: str = "none",
        per_atom: bool = False,
        standardize: bool = False,
        unit: str | None = None,
    ) -> TargetTransform:
        """Return the transform of a target, from the training molecules only.

        Args:
            molecules: All molecules.
            target: Which of their targets.
            train_indices: Those that may be looked at.
            references: "none"; "atoms": the published energies of single atoms (targets U0, U, H
                and G of QM9), so that formation energies are left; "fitted": those that explain
                the target best, by least squares. An element that no training molecule has gets 0.
            per_atom: Divide by the number of atoms.
            standardize: Bring mean 0 and standard deviation 1 about.
            unit: Of the physical values; default: what `molecules` know about it.

        Raises:
            OptionsError: if the target is unknown, or has no energies of atoms.
        """
        name = resolve_target(molecules, target)
        references = to_choice(_REFERENCES, references, "references")
        if unit is None:
            unit = molecules.units.get(name, "")
        chosen: Mapping[int, float] = {}
        if references == "atoms":
            chosen = _atom_references(name)
        elif references == "fitted":
            chosen = _fitted_references(molecules, name, np.asarray(train_indices))
        plain = cls(name, unit, chosen, per_atom)
        if not standardize:
            return plain
        train = molecules.take(train_indices)
        left = plain.apply(train.targets[name], train.z, train.offsets)
        # One molecule, or all alike: nothing to scale by.
        std = float(left.std())
        std = std if std > 1e-12 * max(float(np.abs(left).max()), 1e-300) else 1.0
        return cls(name, unit, chosen, per_atom, float(left.mean()), std)

    def apply(self, values: Any, z: Any, offsets: Any) -> Values:
        """Return what a network learns instead of physical `values`, for molecules of these atoms.

        Args:
            values: [num_molecules], or a column of them.
            z: Atomic numbers, atoms of all molecules one after the other.
            offsets: Where the atoms of each molecule begin and end, [num_molecules + 1].
        """
        left = _one_each(values, offsets) - self._of_atoms(z, offsets)
        if self.per_atom:
            left = left / np.diff(offsets)
        return np.asarray((left - self.mean) / self.std)

    def restore(self, values: Any, z: Any, offsets: Any) -> Values:
        """Return physical values: the inverse of `apply`, in float64 whatever comes in."""
        left = _one_each(values, offsets) * self.std + self.mean
        if self.per_atom:
            left = left * np.diff(offsets)
        return np.asarray(left + self._of_atoms(z, offsets))

    def _of_atoms(self, z: Any, offsets: Any) -> Values:
        if not self.references or not len(offsets) - 1:
            return np.zeros(len(offsets) - 1)
        table = np.full(NUM_ELEMENTS, np.nan)
        table[list(self.references)] = list(self.references.values())
        energies = table[np.asarray(z)]
        if np.isnan(energies).any():
            wrong = int(np.asarray(z)[np.isnan(energies)][0])
            known = ", ".join(map(str, self.references))
            raise StoreError(
                f"there is no reference energy for the element {wrong} (known are {known}); leave "
                "such molecules out, or use references='fitted' or 'none'"
            )
        return np.asarray(np.add.reduceat(energies, np.asarray(offsets)[:-1]))

    def __str__(self) -> str:
        """Say in words what is done."""
        steps = [
            f"less references of {len(self.references)} elements" if self.references else "",
            "per atom" if self.per_atom else "",
            "standardised" if (self.mean, self.std) != (0.0, 1.0) else "",
        ]
        unit = f" ({self.unit})" if self.unit else ""
        return ", ".join([f"{self.target}{unit}", *filter(None, steps)])

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types; numbers keep all their digits."""
        return {
            "target": self.target,
            "unit": self.unit,
            "references": {str(z): float(energy) for z, energy in self.references.items()},
            "per_atom": self.per_atom,
            "mean": self.mean,
            "std": self.std,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TargetTransform:
        """Build a transform from `to_dict`'s result."""
        references = {int(z): float(energy) for z, energy in values["references"].items()}
        return cls(**{**values, "references": references})


def _one_each(values: Any, offsets: Any) -> Values:
    """Return one number for each molecule; a column, as networks give it, must not broadcast."""
    numbers = np.asarray(values, dtype=np.float64)
    count = len(offsets) - 1
    if numbers.shape not in ((count,), (count, 1)):
        raise OptionsError(
            f"values have the shape {list(numbers.shape)} for {count} molecules; wanted is one "
            "number each"
        )
    return numbers.reshape(count)


class UnknownTarget(OptionsError):  # noqa: N818 - reads as the event it reports
    """Molecules have no target of that name; `known` are those that they have."""

    def __init__(self, message: str, known: list[str]) -> None:
        super().__init__(message)
        self.known = known


def resolve_target(molecules: Molecules, target: str) -> str:
    """Return the name of a target as `molecules` has it; case matters only between two of them.

    Names of the published table ("u298") and PyG's column numbers are understood for QM9's targets.

    Raises:
        UnknownTarget: if there is no such target.
    """
    names = list(molecules.targets)
    if target in names:
        return target
    for candidate in (str(target), find_target(target)):
        for name in names:
            if candidate is not None and name.lower() == candidate.lower():
                return name
    raise UnknownTarget(_describe_unknown(molecules, str(target)), names)


def _describe_unknown(molecules: Molecules, target: str) -> str:
    names = list(molecules.targets)
    known = f"choose from {', '.join(names)}" if names else "they have no targets at all"
    if target in molecules.unread:
        return f"{target!r} is not one number for each molecule, so it cannot be learnt; {known}"
    meant = did_you_mean(target, names)
    text = f"the molecules have no target {target!r}; {known}"
    return f"{text}; {meant}" if meant else text


def element_predictions(molecules: Molecules, target: str, train: Any, evaluate: Any) -> Values:
    """Return what linear regression on the numbers of atoms by element predicts.

    Args:
        molecules: All molecules.
        target: Which of their targets.
        train: Indices of the molecules that coefficients and a constant are fitted to.
        evaluate: Indices of those that are predicted.
    """
    name = resolve_target(molecules, target)
    parts = [molecules.take(indices) for indices in (train, evaluate)]
    counts = [
        np.column_stack([count_elements(part, molecules.elements), np.ones(len(part))])
        for part in parts
    ]
    coefficients = np.linalg.lstsq(counts[0], parts[0].targets[name], rcond=None)[0]
    return np.asarray(counts[1] @ coefficients)


def element_baseline(molecules: Molecules, target: str, train: Any, evaluate: Any) -> float:
    """Return the mean absolute error of `element_predictions`, which takes the same arguments.

    What can be said from the formula alone; a network must be far better.
    """
    predicted = element_predictions(molecules, target, train, evaluate)
    true = molecules.take(evaluate).targets[resolve_target(molecules, target)]
    return float(np.abs(predicted - true).mean())


def _atom_references(target: str) -> Mapping[int, float]:
    if target not in ATOM_REFERENCES_EV:
        raise OptionsError(
            f"the target {target!r} has no energies of atoms; {', '.join(ATOM_REFERENCES_EV)} of "
            "QM9 have; use references='fitted' (use_qm9_energy false) for others"
        )
    return ATOM_REFERENCES_EV[target]


def _fitted_references(molecules: Molecules, target: str, train: Any) -> Mapping[int, float]:
    part = molecules.take(train)
    elements = molecules.elements
    counts = count_elements(part, elements)
    # Of all solutions the shortest: elements that do not occur in training get 0.
    energies = np.linalg.lstsq(counts, part.targets[target], rcond=None)[0]
    return dict(zip(elements, energies.tolist(), strict=True))
