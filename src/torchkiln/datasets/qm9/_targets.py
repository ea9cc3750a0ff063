"""The 19 properties of QM9 by PyG's order, names and units, in full precision."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from torchkiln.datasets.molecules._molecules import Molecules
from torchkiln.datasets.qm9._arrays import (
    ATOM_ENERGIES_HARTREE,
    HARTREE_TO_EV,
    KCAL_MOL_TO_EV,
    TARGET_COLUMNS,
    QM9Arrays,
)

# name: (column of PyG's `y`, unit)
QM9_TARGETS: dict[str, tuple[int, str]] = {
    name: (column, unit)
    for column, (name, unit) in enumerate(
        [
            ("mu", "D"),
            ("alpha", "a0^3"),
            *[(name, "eV") for name in ("homo", "lumo", "gap")],
            ("r2", "a0^2"),
            *[(name, "eV") for name in ("zpve", "U0", "U", "H", "G")],
            ("Cv", "cal/(mol K)"),
            *[(name, "eV") for name in ("U0_atom", "U_atom", "H_atom", "G_atom")],
            *[(name, "GHz") for name in ("A", "B", "C")],
        ]
    )
}
# As the published table names what PyG names otherwise.
_PUBLISHED = {"U": "u298", "H": "h298", "G": "g298"} | {
    "U_atom": "u298_atom",
    "H_atom": "h298_atom",
    "G_atom": "g298_atom",
}
# By target: energies of single atoms in eV, those of PyG's `QM9.atomref`.
ATOM_REFERENCES_EV: dict[str, dict[int, float]] = {
    target: {z: values[row] * HARTREE_TO_EV for z, values in ATOM_ENERGIES_HARTREE.items()}
    for row, target in enumerate(("U0", "U", "H", "G"))
}


def published_name(target: str) -> str:
    """Return what the published table calls one of `QM9_TARGETS`."""
    name = _PUBLISHED.get(target, target)
    return name if name in TARGET_COLUMNS else name.lower()


def find_target(name: str | int) -> str | None:
    """Return the name in `QM9_TARGETS` of what may be a published name or PyG's column, or None."""
    text = str(name).lower()
    for target, (column, _) in QM9_TARGETS.items():
        if text in (target.lower(), published_name(target).lower(), str(column)):
            return target
    return None


def in_pyg_units(target: str, published: NDArray[np.float64]) -> NDArray[np.float64]:
    """Convert a column of the published table, in float64: hartree or kcal/mol to eV."""
    if QM9_TARGETS[target][1] != "eV":
        return published
    return published * (KCAL_MOL_TO_EV if target.endswith("_atom") else HARTREE_TO_EV)


def qm9_targets(published: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
    """Return all 19 targets by name, in PyG's order, of a table of `TARGET_COLUMNS`."""
    columns = {target: TARGET_COLUMNS.index(published_name(target)) for target in QM9_TARGETS}
    return {target: in_pyg_units(target, published[:, i]) for target, i in columns.items()}


def to_molecules(arrays: QM9Arrays, source: str) -> Molecules:
    """Return molecules with all 19 targets, in PyG's units."""
    return Molecules(
        offsets=arrays.offsets,
        z=arrays.z,
        pos=arrays.pos,
        names=[f"gdb_{index}" for index in arrays.index.tolist()],
        targets=qm9_targets(arrays.targets),
        source=source,
    )
