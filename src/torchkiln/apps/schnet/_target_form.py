"""In which form the target is learnt, where the flags leave it to the dataset."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torchkiln.apps.schnet._settings import Settings
from torchkiln.datasets.molecules._published_targets import ATOM_REFERENCES_EV, find_target

References = Literal["none", "atoms", "fitted"]


@dataclass(frozen=True, slots=True)
class TargetForm:
    """What is done to the target before training, and the readout that suits it.

    Args:
        references: Energies that are subtracted for each atom.
        per_atom: Divide by the number of atoms.
        readout: How the model joins atoms. A sum over atoms has the size of the molecule built in,
            as totals have; a mean has not, as targets per atom have not.
    """

    references: References
    per_atom: bool
    readout: Literal["add", "mean"]


def target_form(settings: Settings) -> TargetForm:
    """Return what flags say; where they are silent, what suits dataset and target.

    `use_qm9_energy` means the energies of QM9 only: a gap or a dipole has no free atoms to
    subtract. The atomisation energies (U0_atom, ...) have had them subtracted already.
    """
    wanted = settings.dataset_factory
    target = find_target(settings.target) if settings.bench.factory == "qm9" else None
    is_total = target in ATOM_REFERENCES_EV
    is_formation = (target or "").removesuffix("_atom") in ATOM_REFERENCES_EV
    references: References = "none"
    if wanted.references is not None:
        references = wanted.references
    elif settings.bench.factory == "water":
        references = "fitted"
    elif is_total and wanted.use_qm9_energy:
        references = "atoms"
    per_atom = wanted.per_atom
    if per_atom is None:
        per_atom = is_formation and wanted.use_qm9_energy
    readout = settings.model.readout
    if readout == "auto":
        readout = "mean" if per_atom else "add"
    return TargetForm(references, per_atom, readout)
