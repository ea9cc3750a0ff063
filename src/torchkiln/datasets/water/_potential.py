"""Energy of water clusters: flexible four-site models, q-TIP4P/F above all.

This is the definition, in batched torch, differentiable to any order. `_relax_kernels` holds the
same formulas with their forces as compiled loops, which is what thousands of relaxations need.
"""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# kcal/mol * angstrom / e^2
COULOMB_KCAL_MOL = 332.06371


@dataclass(frozen=True, slots=True)
class WaterModel:
    """A flexible water model: two charged hydrogens, and a charge M between them and the oxygen.

    A bond costs the Morse potential's expansion to fourth order, an angle is harmonic; between
    molecules, oxygens feel Lennard-Jones forces, charges Coulomb's.

    Attributes:
        bond_depth: Depth of the Morse potential, kcal/mol.
        bond_alpha: Its width, 1/angstrom.
        bond_angstrom: Length of a bond at rest.
        angle_stiffness: kcal/mol/rad^2; the energy has half of it.
        angle_degrees: Angle at rest.
        epsilon: Depth of the Lennard-Jones potential, kcal/mol.
        sigma_angstrom: Where it crosses zero.
        charge: Charge of each hydrogen in e; M has -2 of it.
        gamma: Share of the oxygen in the place of M; the hydrogens share the rest.
    """

    bond_depth: float
    bond_alpha: float
    bond_angstrom: float
    angle_stiffness: float
    angle_degrees: float
    epsilon: float
    sigma_angstrom: float
    charge: float
    gamma: float

    @property
    def numbers(self) -> NDArray[np.float64]:
        """The attributes in their order, as compiled loops take them."""
        return np.array(astuple(self))


# Habershon, Markland, Manolopoulos, J. Chem. Phys. 131, 024501 (2009), table I.
Q_TIP4P_F = WaterModel(
    bond_depth=116.09,
    bond_alpha=2.287,
    bond_angstrom=0.9419,
    angle_stiffness=87.85,
    angle_degrees=107.4,
    epsilon=0.1852,
    sigma_angstrom=3.1589,
    charge=0.5564,
    gamma=0.73612,
)


def water_energy(pos: Tensor, model: WaterModel = Q_TIP4P_F) -> Tensor:
    """Return the energy of each cluster in kcal/mol, relative to its molecules apart and at rest.

    Args:
        pos: Coordinates in angstrom, [num_clusters, num_molecules, 3, 3]: oxygen and both hydrogens
            of each molecule. Use float64: in float32, energies of 30 molecules are good to 1e-4.
        model: The parameters.
    """
    oxygen, hydrogens = pos[:, :, 0], pos[:, :, 1:]
    bonds = hydrogens - oxygen[:, :, None]
    lengths = bonds.norm(dim=-1)
    x = model.bond_alpha * (lengths - model.bond_angstrom)
    stretch = model.bond_depth * (x**2 - x**3 + 7 / 12 * x**4)
    cosine = (bonds[:, :, 0] * bonds[:, :, 1]).sum(-1) / lengths.prod(-1)
    bend = model.angle_stiffness / 2 * (cosine.acos() - math.radians(model.angle_degrees)) ** 2
    energy: Tensor = stretch.sum((1, 2)) + bend.sum(1)

    first, second = torch.triu_indices(pos.shape[1], pos.shape[1], 1, device=pos.device)
    sixth = (model.sigma_angstrom / (oxygen[:, first] - oxygen[:, second]).norm(dim=-1)) ** 6
    energy += 4 * model.epsilon * (sixth**2 - sixth).sum(1)

    middle = model.gamma * oxygen + (1 - model.gamma) / 2 * hydrogens.sum(2)
    sites = torch.cat([hydrogens, middle[:, :, None]], 2)
    charges = model.charge * pos.new_tensor([1.0, 1.0, -2.0])
    apart = (sites[:, first, :, None] - sites[:, second, None]).norm(dim=-1)
    energy += COULOMB_KCAL_MOL * (charges[:, None] * charges / apart).sum((1, 2, 3))
    return energy


def water_forces(pos: Tensor, model: WaterModel = Q_TIP4P_F) -> tuple[Tensor, Tensor]:
    """Return energies (`water_energy`) and the force on each atom in kcal/mol/angstrom."""
    with torch.enable_grad():
        pos = pos.detach().requires_grad_()
        energy = water_energy(pos, model)
        (gradient,) = torch.autograd.grad(energy.sum(), pos)
    return energy.detach(), -gradient
