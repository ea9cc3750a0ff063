"""Water clusters as `Molecules`, and ready for training."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from torchkiln.core import OptionsError
from torchkiln.datasets.molecules._molecule_set import MoleculeSet, make_molecule_set
from torchkiln.datasets.molecules._molecules import Molecules
from torchkiln.datasets.molecules._splits import Splits
from torchkiln.datasets.water._generated import generated_molecules
from torchkiln.datasets.water._hydronet_splits import read_split_file
from torchkiln.datasets.water._release import read_numbered, read_release
from torchkiln.datasets.water._subsets import find_subset


def water_molecules(
    subset: str = "debug",
    *,
    root: str | Path | None = None,
    generator_seed: int = 0,
    limit: int | None = None,
    progress: bool = True,
) -> Molecules:
    """Return water clusters with their binding energies ("energy", kcal/mol, negative).

    Args:
        subset: "debug", "test", "train" or "all"; test and train have no cluster in common.
        root: Folder (or file) of the HydroNet release; None: clusters that are generated here,
            once, and kept in the data directory.
        generator_seed: Chooses other generated clusters.
        limit: At most so many, the first of each size, evenly.
        progress: Draw progress bars.

    Raises:
        OptionsError: if the subset is unknown or a number makes no sense.
        StoreError: if files are missing or damaged; it names the file and the line.
    """
    chosen = find_subset(subset)
    if limit is not None and limit < 1:
        raise OptionsError(f"limit must be at least 1, got {limit}")
    if generator_seed < 0:
        raise OptionsError(f"generator_seed must not be negative, got {generator_seed}")
    if root is None:
        return generated_molecules(chosen, seed=generator_seed, limit=limit, progress=progress)
    return read_release(Path(root), chosen, limit=limit, progress=progress)


def load_water(
    subset: str = "debug",
    *,
    root: str | Path | None = None,
    target: str = "energy",
    k: int | None = 28,
    cutoff_angstrom: float = 6.0,
    splits: Splits = "80/10/10",
    seed: int = 0,
    references: str = "fitted",
    per_atom: bool | None = False,
    standardize: bool = True,
    unit: str | None = None,
    limit: int | None = None,
    generator_seed: int = 0,
    progress: bool = True,
) -> MoleculeSet:
    """Return water clusters ready for training: interaction graphs, splits, a transformed target.

    Args:
        subset: See `water_molecules`. It is split again by `splits`.
        root: See `water_molecules`.
        target: "energy", the binding energy in kcal/mol.
        k: Neighbours that an atom hears at most; None: no limit.
        cutoff_angstrom: How far away they may be.
        splits: "80/10/10", shares or counts (`split_indices`); with `root` also a split file of
            HydroNet (`split_00_small.npz`), or its name below `root`. It numbers the clusters of
            the whole release, so that it needs the subset "all" and no limit.
        seed: Of the split.
        references: "fitted" subtracts what each atom contributes on average: energies grow with
            the number of molecules. "none" does not. "auto" does what suits the target.
        per_atom: Divide the target by the number of atoms; None: if it grows with the cluster.
        standardize: Bring mean 0 and standard deviation 1 about, over the training clusters.
        unit: Of the target; it is kcal/mol, anything else is an error.
        limit: At most so many clusters, the first of each size, evenly.
        generator_seed: See `water_molecules`.
        progress: Draw progress bars.

    Raises:
        OptionsError: if a value makes no sense.
        StoreError: if files are missing or damaged.
    """
    if root is not None and isinstance(splits, str | Path) and str(splits).endswith(".npz"):
        if subset != "all" or limit is not None:
            raise OptionsError(
                f"the split file {splits} numbers the clusters of the whole release; use the "
                f"subset 'all' without a limit, got subset {subset!r} and limit {limit}"
            )
        named = read_split_file(splits, Path(root))
        numbers = np.sort(np.concatenate(list(named.values())))
        molecules = read_numbered(Path(root), numbers, progress=progress)
        splits = {part: np.searchsorted(numbers, indices) for part, indices in named.items()}
    else:
        molecules = water_molecules(
            subset, root=root, generator_seed=generator_seed, limit=limit, progress=progress
        )
    return make_molecule_set(
        molecules,
        name=f"water ({subset})",
        target=target,
        k=k,
        cutoff_angstrom=cutoff_angstrom,
        splits=splits,
        seed=seed,
        references=references,
        per_atom=per_atom,
        standardize=standardize,
        unit=unit,
        progress=progress,
    )
