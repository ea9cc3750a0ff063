"""From any arrangement of water molecules to the nearest minimum of the energy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchkiln.core import OptionsError
from torchkiln.datasets.water._potential import Q_TIP4P_F, WaterModel

Floats = NDArray[np.float64]

# kcal/mol/angstrom, 40 times below what chemists call converged: energies are then good to 1e-4
# kcal/mol, by which duplicates are told.
FORCE_TOLERANCE = 1e-3
_MAX_STEPS = 20_000
_MAX_MOVE_ANGSTROM = 0.2
# Hydrogen bonds hold oxygens 2.6 to 3.1 angstrom apart, whole molecules are 0.94 by 107 degrees.
_MAX_LINK_ANGSTROM = 3.6
_MIN_OXYGENS_ANGSTROM = 2.3
_BOND_ANGSTROM = (0.8, 1.2)


@dataclass(frozen=True, slots=True)
class Relaxed:
    """A relaxed cluster.

    Attributes:
        pos: Coordinates in angstrom, [num_molecules, 3, 3]: O H H of each molecule.
        energy: kcal/mol, relative to the molecules apart and at rest.
        max_force: The largest component of a force that is left, kcal/mol/angstrom.
        num_evaluations: How often energy and forces were computed.
    """

    pos: Floats
    energy: float
    max_force: float
    num_evaluations: int

    @property
    def converged(self) -> bool:
        """Whether forces vanish; not where molecules collapsed or the steps did not suffice."""
        return self.max_force <= FORCE_TOLERANCE

    @property
    def is_cluster(self) -> bool:
        """Whether all molecules are whole and hang together by hydrogen bonds."""
        return is_cluster(self.pos)


def relax_cluster(pos: Floats, model: WaterModel = Q_TIP4P_F) -> Relaxed:
    """Move a cluster downhill (L-BFGS) until no force is left.

    Args:
        pos: Coordinates in angstrom, [num_molecules, 3, 3]: O H H of each molecule; not changed.
        model: The parameters of the energy.

    Raises:
        OptionsError: if `pos` has another shape, or coordinates that are not finite.
    """
    from torchkiln.datasets.water._relax_kernels import relax  # compiles: only where needed

    if pos.ndim != 3 or pos.shape[1:] != (3, 3) or not np.isfinite(pos).all():
        raise OptionsError(
            f"a cluster has finite coordinates of shape [num_molecules, 3, 3] (O H H of each "
            f"molecule), got shape {list(pos.shape)}"
        )
    by_axis = np.array(pos.reshape(-1, 3).T, dtype=np.float64, order="C")
    energy, max_force, evaluations = relax(
        by_axis, model.numbers, FORCE_TOLERANCE, _MAX_STEPS, _MAX_MOVE_ANGSTROM
    )
    relaxed = np.ascontiguousarray(by_axis.T).reshape(pos.shape)
    return Relaxed(relaxed, float(energy), float(max_force), int(evaluations))


def is_cluster(pos: Floats) -> bool:
    """Return whether all molecules of `pos` [num_molecules, 3, 3] are whole and hang together."""
    bonds = np.linalg.norm(pos[:, 1:] - pos[:, :1], axis=-1)
    if bonds.min() < _BOND_ANGSTROM[0] or bonds.max() > _BOND_ANGSTROM[1]:
        return False
    apart = np.linalg.norm(pos[:, None, 0] - pos[None, :, 0], axis=-1)
    np.fill_diagonal(apart, np.inf)
    if apart.min() < _MIN_OXYGENS_ANGSTROM:
        return False
    linked = apart < _MAX_LINK_ANGSTROM
    reached = np.arange(len(pos)) == 0
    while (more := reached | linked[reached].any(axis=0)).sum() > reached.sum():
        reached = more
    return bool(reached.all())
