"""The 19 properties of QM9: as they were published, and by PyG's order, names and units.

Facts that molecules from anywhere are understood by: files of others carry the same names. All
numbers are in full precision.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# As in the published gdb9.sdf.csv. The first `NUM_PROPERTIES` stand in every form of the dataset,
# the atomisation energies after them follow from these.
TARGET_COLUMNS = (
    *("A", "B", "C", "mu", "alpha", "homo", "lumo", "gap", "r2", "zpve"),
    *("u0", "u298", "h298", "g298", "cv", "u0_atom", "u298_atom", "h298_atom", "g298_atom"),
)
NUM_PROPERTIES = 15
_ENERGY_COLUMNS = [TARGET_COLUMNS.index(name) for name in ("u0", "u298", "h298", "g298")]
# Energies of single atoms in hartree (U0, U, H, G), published with QM9 as atomref.txt.
ATOM_ENERGIES_HARTREE = {
    1: (-0.500273, -0.498857, -0.497912, -0.510927),
    6: (-37.846772, -37.845355, -37.844411, -37.861317),
    7: (-54.583861, -54.582445, -54.581501, -54.598897),
    8: (-75.064579, -75.063163, -75.062219, -75.079532),
    9: (-99.718730, -99.717314, -99.716370, -99.733544),
}
# The factor with which the published atomisation energies were made; PyG undoes it with its own.
_HARTREE_TO_KCAL_MOL = 627.509
HARTREE_TO_EV = 27.211386246
KCAL_MOL_TO_EV = 0.04336414

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
# Units of energies as reports know them; people write them in small and in large letters.
_ENERGY_UNITS = ("eV", "meV", "Ha", "hartree", "kcal/mol", "kJ/mol")
QM9_UNITS = {name: unit for name, (_, unit) in QM9_TARGETS.items()}
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


def published_targets(
    properties: NDArray[np.float64], z: NDArray[np.uint8], offsets: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return `TARGET_COLUMNS`: the properties and, from them, the atomisation energies.

    Args:
        properties: [num_molecules, NUM_PROPERTIES], in the published units.
        z: Atomic numbers, atoms of all molecules one after the other.
        offsets: Where the atoms of each molecule begin and end.
    """
    energies = np.zeros((max(ATOM_ENERGIES_HARTREE) + 1, 4))
    for number, values in ATOM_ENERGIES_HARTREE.items():
        energies[number] = values
    of_atoms = np.add.reduceat(energies[z], offsets[:-1])
    binding = (properties[:, _ENERGY_COLUMNS] - of_atoms) * _HARTREE_TO_KCAL_MOL
    # The tables have six decimals and the factor three: more would be noise of the summation.
    return np.concatenate([properties, np.round(binding, 9)], axis=1)


def spell_unit(unit: str) -> str:
    """Return the unit of an energy as reports spell it ("ev" is "eV"), any other as it is.

    "MeV" is left alone: a million is meant, not a thousandth.
    """
    if unit == "MeV":
        return unit
    known = {name.lower(): name for name in _ENERGY_UNITS}
    return known.get(unit.strip().lower(), unit)
