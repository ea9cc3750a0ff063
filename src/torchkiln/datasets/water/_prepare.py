"""Preparing water clusters ahead of time, checking them, and saying where they are."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from torchkiln.core import StoreError
from torchkiln.datasets._array_cache import data_dir
from torchkiln.datasets.molecules._molecules import Molecules
from torchkiln.datasets.water._generated import kept_files
from torchkiln.datasets.water._hydronet_files import find_files
from torchkiln.datasets.water._load import water_molecules
from torchkiln.datasets.water._relax import FORCE_TOLERANCE
from torchkiln.datasets.water._subsets import find_subset

# kcal/mol: what two ways to compute an energy may differ by.
_ENERGY_TOLERANCE = 1e-6
_CLUSTERS_PER_STEP = 64


def prepare_water(
    subset: str = "debug",
    root: str | Path | None = None,
    seed: int = 0,
    *,
    progress: bool = True,
    say: Callable[[str], object] | None = None,
) -> Path:
    """Generate or read water clusters, check them, and say where they are and how large.

    Generated clusters are computed anew by the potential's definition: energies must agree and no
    force may be left. Of a release, all files of the subset are read.

    Args:
        subset: "debug", "test", "train" or "all".
        root: Folder (or file) of the HydroNet release; None: generated clusters.
        seed: Of the generated clusters (`load_water`'s `generator_seed`).
        progress: Draw progress bars.
        say: Takes the lines of the summary; default: they go to stderr.

    Returns:
        The folder with the clusters.

    Raises:
        OptionsError: if the subset is unknown.
        StoreError: if files are missing or damaged, or clusters fail the check.
    """
    tell = say or (lambda line: sys.stderr.write(f"{line}\n"))
    molecules = water_molecules(subset, root=root, generator_seed=seed, progress=progress)
    energies = molecules.targets["energy"]
    waters = molecules.num_atoms // 3
    tell(
        f"water ({subset}): {len(molecules):,} clusters of {waters.min()} to {waters.max()} "
        f"molecules, {len(molecules.z):,} atoms; {energies.min():.2f} to {energies.max():.2f} "
        "kcal/mol"
    )
    if root is None:
        files, folder = kept_files(find_subset(subset), seed), data_dir() / "water"
        worst_energy, worst_force = check_minima(molecules)
        tell(
            f"checked: energies agree to {worst_energy:.1e} kcal/mol, no force above "
            f"{worst_force:.1e} kcal/mol/angstrom"
        )
    else:
        files, folder = find_files(Path(root)), Path(root)
    size_mb = sum(path.stat().st_size for path in files) / 1e6
    tell(f"{len(files)} files, {size_mb:.1f} MB in {folder}")
    return folder


def check_minima(molecules: Molecules) -> tuple[float, float]:
    """Compute generated clusters anew; return the largest error of an energy and largest force.

    Raises:
        StoreError: if an energy is wrong or a cluster is no minimum.
    """
    import torch

    from torchkiln.datasets.water._potential import water_forces

    errors, forces = np.zeros(len(molecules)), np.zeros(len(molecules))
    for size in np.unique(molecules.num_atoms).tolist():
        members = np.flatnonzero(molecules.num_atoms == size)
        for start in range(0, len(members), _CLUSTERS_PER_STEP):
            some = members[start : start + _CLUSTERS_PER_STEP]
            pos = molecules.pos[molecules.offsets[some][:, None] + np.arange(size)]
            energy, force = water_forces(torch.from_numpy(pos.reshape(len(some), -1, 3, 3)))
            errors[some] = np.abs(energy.numpy() - molecules.targets["energy"][some])
            forces[some] = force.abs().amax((1, 2, 3)).numpy()
    bad = np.flatnonzero((errors > _ENERGY_TOLERANCE) | (forces > 2 * FORCE_TOLERANCE))
    if len(bad):
        name = molecules.names[bad[0]] if molecules.names else bad[0]
        raise StoreError(
            f"{len(bad)} generated clusters are wrong; the first, {name}, is off by "
            f"{errors[bad[0]]:.1e} kcal/mol and has forces of {forces[bad[0]]:.1e}; remove "
            f"{data_dir() / 'water'} and prepare them again"
        )
    return float(errors.max()), float(forces.max())
