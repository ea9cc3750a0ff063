"""What kind of quantity a target is: whether it grows with the molecule, as energies do, or not."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from torchkiln.datasets.molecules._element_counts import count_elements
from torchkiln.datasets.molecules._molecules import Molecules
from torchkiln.datasets.molecules._published_targets import ATOM_REFERENCES_EV, QM9_UNITS

Kind = Literal["extensive", "intensive"]

# A dipole, an orbital energy or a rotational constant belongs to the molecule as a whole; whatever
# else QM9 has is a sum over its parts, at least roughly.
_INTENSIVE = frozenset({"mu", "homo", "lumo", "gap", "A", "B", "C"})
# A sum must leave at most so much of what a mean leaves unexplained. Dipoles of QM9, which do not
# grow, come to 0.96, and r2, which does, to 0.81; energies are far below.
_CLEARLY_LESS = 0.9


def find_kind(molecules: Molecules, target: str, train: Any) -> Kind:
    """Return whether a target grows with the size of the molecule.

    For QM9's own targets this is known. For others the training molecules tell: a target is called
    extensive if contributions of the atoms explain it clearly better when they are added up than
    when they are averaged. Where all molecules have one size, both are the same, and the target is
    taken for a sum.

    Args:
        molecules: All molecules.
        target: Which of their targets, by its exact name.
        train: Indices of the molecules that may be looked at.
    """
    if is_published(molecules, target):
        return "intensive" if target in _INTENSIVE else "extensive"
    part = molecules.take(train)
    values = part.targets[target]
    counts = count_elements(part, molecules.elements)
    shares = counts / part.num_atoms[:, None]
    added, averaged = (_unexplained(inputs, values) for inputs in (counts, shares))
    rounding = 1e-9 * float(np.square(values).sum())
    is_same = abs(added - averaged) <= rounding
    return "extensive" if is_same or added < _CLEARLY_LESS * averaged else "intensive"


def is_published(molecules: Molecules, target: str) -> bool:
    """Return whether a target is QM9's own, in its own unit, and not one that only has its name."""
    return target in QM9_UNITS and molecules.units.get(target) == QM9_UNITS[target]


def has_atom_references(molecules: Molecules, target: str) -> bool:
    """Return whether the published energies of free atoms belong to this target."""
    return target in ATOM_REFERENCES_EV and is_published(molecules, target)


def is_formation_energy(molecules: Molecules, target: str) -> bool:
    """Return whether the energies of the free atoms were subtracted already (U0_atom, ...)."""
    total, suffix, _ = target.partition("_atom")
    return bool(suffix) and total in ATOM_REFERENCES_EV and is_published(molecules, target)


def _unexplained(inputs: Any, values: Any) -> float:
    """Return the sum of squares that a linear function of `inputs` leaves of `values`."""
    coefficients = np.linalg.lstsq(inputs, values, rcond=None)[0]
    return float(np.square(inputs @ coefficients - values).sum())
