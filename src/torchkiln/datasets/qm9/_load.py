"""QM9 as `Molecules`, and ready for training."""

from __future__ import annotations

from pathlib import Path

from torchkiln.datasets.molecules._molecule_set import MoleculeSet, make_molecule_set
from torchkiln.datasets.molecules._molecules import Molecules
from torchkiln.datasets.molecules._published_targets import QM9_UNITS
from torchkiln.datasets.molecules._splits import Splits
from torchkiln.datasets.qm9._arrays import qm9_arrays
from torchkiln.datasets.qm9._folder import molecules_in
from torchkiln.datasets.qm9._molecules import to_molecules


def qm9_molecules(root: str | Path | None = None, *, progress: bool = True) -> Molecules:
    """Return all of QM9, or the molecules of the user's own files, with all their targets.

    Args:
        root: Where to look; None: the package qm9pack, cached after the first time. A folder with
            the tables of qm9pack, a root of PyG's `QM9` (raw files before processed ones, which
            round energies), or a file or folder of .xyz, .extxyz or .sdf, whose targets stand in
            the files or in a .csv of the same name beside them.
        progress: Draw progress bars.

    Raises:
        StoreError: if nothing is found, or a file is damaged; it names the file and the line.
    """
    if root is None:
        return to_molecules(qm9_arrays(progress=progress), "qm9pack")
    return molecules_in(Path(root), progress=progress)


def load_qm9(
    *,
    root: str | Path | None = None,
    target: str = "U0",
    k: int | None = None,
    cutoff_angstrom: float = 10.0,
    splits: Splits = "80/10/10",
    seed: int = 0,
    references: str = "none",
    per_atom: bool | None = False,
    standardize: bool = False,
    unit: str | None = None,
    limit: int | None = None,
    progress: bool = True,
) -> MoleculeSet:
    """Return QM9, or your own molecules, with interaction graphs, splits and a transformed target.

    Your own molecules are named after their file or folder.

    Args:
        root: See `qm9_molecules`.
        target: One of `QM9_TARGETS`, or of the targets of the user's files.
        k: Neighbours that an atom hears at most; None: no limit.
        cutoff_angstrom: How far away they may be.
        splits: "80/10/10", "schnet", shares, counts or a file; see `split_indices`.
        seed: Of the split, and of the choice of molecules if there is a limit.
        references: "none", "atoms" (formation energies), "fitted" or "auto"; see
            `make_molecule_set`.
        per_atom: Divide the target by the number of atoms; None: if it grows with the molecule.
        standardize: Bring mean 0 and standard deviation 1 about, over the training molecules.
        unit: Of the target, for reports; default: QM9's own, and unknown for your own molecules.
        limit: Take only so many molecules, at random by `seed`.
        progress: Draw progress bars.

    Raises:
        OptionsError: if a value makes no sense.
        StoreError: if files are missing or damaged.
    """
    molecules = qm9_molecules(root, progress=progress)
    return make_molecule_set(
        molecules,
        name="QM9" if root is None else _name_of(molecules, Path(root)),
        target=target,
        k=k,
        cutoff_angstrom=cutoff_angstrom,
        splits=splits,
        seed=seed,
        references=references,
        per_atom=per_atom,
        standardize=standardize,
        unit=unit,
        limit=limit,
        progress=progress,
    )


def _name_of(molecules: Molecules, root: Path) -> str:
    """Return "QM9" for any form of it, and the name of the file or folder for the user's own."""
    return "QM9" if set(QM9_UNITS) <= set(molecules.units) else root.resolve().name
