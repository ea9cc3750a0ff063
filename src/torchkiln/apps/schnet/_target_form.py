"""In which form the target is learnt: what flags say, and where they are silent, what suits it."""

from __future__ import annotations

from typing import Literal, NamedTuple

from torchkiln.apps.schnet._settings import Settings
from torchkiln.datasets import MoleculeSet
from torchkiln.datasets.molecules._published_targets import ATOM_REFERENCES_EV, find_target


class AskedForm(NamedTuple):
    """What is asked of a dataset.

    Args:
        references: Energies that are subtracted for each atom; "auto": what suits the target.
        per_atom: Divide by the number of atoms; None: if the target grows with the molecule.
    """

    references: Literal["auto", "none", "atoms", "fitted"]
    per_atom: bool | None


def asked_form(settings: Settings) -> AskedForm:
    """Return what the flags say about the target before it is learnt.

    `use_qm9_energy` is about the energies of QM9 only: a gap or a dipole has no free atoms to
    subtract, and neither water nor your own molecules come with theirs.
    """
    wanted = settings.dataset_factory
    is_energy = settings.bench.factory == "qm9" and _is_qm9_energy(settings.target)
    leaves_as_is = is_energy and not wanted.use_qm9_energy
    references = wanted.references or ("none" if leaves_as_is else "auto")
    per_atom = wanted.per_atom
    if per_atom is None and leaves_as_is:
        per_atom = False
    return AskedForm(references, per_atom)


def _is_qm9_energy(target: str) -> bool:
    name = find_target(target) or ""
    return name.removesuffix("_atom") in ATOM_REFERENCES_EV


def choose_readout(settings: Settings, dataset: MoleculeSet) -> Literal["add", "mean"]:
    """Return how the model joins atoms: what the flag says, or what suits the target.

    A sum over atoms has the size of the molecule built in, as totals have. A mean has not, as
    targets per atom and those that do not grow with the molecule have not.
    """
    if settings.model.readout != "auto":
        return settings.model.readout
    is_total = dataset.kind == "extensive" and not dataset.transform.per_atom
    return "add" if is_total else "mean"
