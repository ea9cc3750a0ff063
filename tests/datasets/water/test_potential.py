import dataclasses
import math

import numpy as np
import pytest
import torch
from _clusters import some_clusters

from torchkiln.datasets.water import Q_TIP4P_F, WaterModel, relax_cluster, water_energy
from torchkiln.datasets.water._generate import generate_minima
from torchkiln.datasets.water._potential import COULOMB_KCAL_MOL, water_forces
from torchkiln.datasets.water._relax_kernels import evaluate

# Jorgensen et al., J. Chem. Phys. 79, 926 (1983): A = 6e5, C = 610 kcal/mol A^6, M 0.15 A from O.
TIP4P = WaterModel(
    bond_depth=116.09,
    bond_alpha=2.287,
    bond_angstrom=0.9572,
    angle_stiffness=87.85,
    angle_degrees=104.52,
    epsilon=610.0**2 / (4 * 600e3),
    sigma_angstrom=(600e3 / 610.0) ** (1 / 6),
    charge=0.52,
    gamma=1 - 0.15 / (0.9572 * math.cos(math.radians(52.26))),
)


def ring(num_molecules, model=Q_TIP4P_F):
    """A ring in which each molecule gives a hydrogen to the next, free ones up and down."""
    radius = 2.75 / (2 * math.sin(math.pi / num_molecules))
    angles = 2 * math.pi * np.arange(num_molecules + 1) / num_molecules
    oxygens = radius * np.stack([np.cos(angles), np.sin(angles), 0 * angles], 1)
    to_next = np.diff(oxygens, axis=0) / 2.75
    up = np.array([[-0.3, 0, (-1) ** i] for i in range(num_molecules)])
    up /= np.linalg.norm(up, axis=1, keepdims=True)
    bond = model.bond_angstrom
    return np.stack([oxygens[:-1], oxygens[:-1] + bond * to_next, oxygens[:-1] + bond * up], 1)


def test_a_molecule_at_rest_has_no_energy_and_the_published_shape():
    relaxed = relax_cluster(some_clusters(1, 1)[0] * 1.05)
    first, second = relaxed.pos[0, 1:] - relaxed.pos[0, 0]
    lengths = np.linalg.norm([first, second], axis=1)
    angle = math.degrees(math.acos(first @ second / lengths.prod()))
    assert abs(relaxed.energy) < 1e-6
    assert lengths == pytest.approx(0.9419, abs=1e-5)
    assert angle == pytest.approx(107.4, abs=1e-2)


def test_the_energy_of_two_molecules_is_that_of_the_formula():
    # Straight from the paper, in plain Python: charges in M and H, Lennard-Jones between oxygens.
    pos = some_clusters(2, 1)[0]
    sites = []
    for oxygen, first, second in pos:
        middle = 0.73612 * oxygen + 0.26388 * (first + second) / 2
        sites.append([(first, 0.5564), (second, 0.5564), (middle, -1.1128)])
    energy = sum(
        COULOMB_KCAL_MOL * p * q / math.dist(a, b) for a, p in sites[0] for b, q in sites[1]
    )
    sixth = (3.1589 / math.dist(pos[0, 0], pos[1, 0])) ** 6
    energy += 4 * 0.1852 * (sixth**2 - sixth)
    assert water_energy(torch.from_numpy(pos[None])).item() == pytest.approx(energy, abs=1e-10)


def test_stretching_and_bending_cost_what_the_formula_says():
    pos = some_clusters(1, 1)[0]
    bond = pos[0, 1] - pos[0, 0]
    pos[0, 1] += 0.1 * bond / np.linalg.norm(bond)
    x = 2.287 * 0.1
    stretched = 116.09 * (x**2 - x**3 + 7 / 12 * x**4)
    assert water_energy(torch.from_numpy(pos[None])).item() == pytest.approx(stretched, abs=1e-9)
    bent = dataclasses.replace(Q_TIP4P_F, angle_degrees=100.0)
    at_rest = torch.from_numpy(some_clusters(1, 1))
    expected = 87.85 / 2 * math.radians(7.4) ** 2
    assert water_energy(at_rest, bent).item() == pytest.approx(expected, abs=1e-9)


def test_forces_are_the_slope_of_the_energy():
    pos = torch.from_numpy(some_clusters(3, 2))
    assert torch.autograd.gradcheck(water_energy, (pos.requires_grad_(),), atol=1e-4)


@pytest.mark.parametrize("num_molecules", [1, 2, 3, 7, 30])
def test_the_compiled_loops_agree_with_the_definition(num_molecules):
    clusters = some_clusters(num_molecules, 3) * 1.01
    energies, forces = water_forces(torch.from_numpy(clusters))
    for pos, energy, force in zip(clusters, energies.numpy(), forces.numpy(), strict=True):
        by_axis = np.array(pos.reshape(-1, 3).T, order="C")
        gradient = np.empty_like(by_axis)
        assert evaluate(by_axis, Q_TIP4P_F.numbers, gradient) == pytest.approx(energy, abs=1e-9)
        np.testing.assert_allclose(-gradient.T.reshape(pos.shape), force, atol=1e-9)


def test_clusters_of_a_batch_do_not_feel_each_other():
    clusters = torch.from_numpy(some_clusters(5, 4))
    alone = torch.cat([water_energy(cluster[None]) for cluster in clusters])
    torch.testing.assert_close(water_energy(clusters), alone, rtol=0, atol=1e-10)


def rigid_tip4p(starts):
    """The lowest energy that relaxing `starts` finds, in the limit of stiff bonds."""
    energies = []
    for stiffness in (10, 20):
        stiff = dataclasses.replace(
            TIP4P, bond_depth=116.09 * stiffness, angle_stiffness=87.85 * stiffness
        )
        relaxed = [relax_cluster(pos, stiff) for pos in starts]
        energies.append(min(minimum.energy for minimum in relaxed))
        starts = [minimum.pos for minimum in relaxed]
    return 2 * energies[1] - energies[0]


# Minima of rigid TIP4P, kcal/mol: Jorgensen 1983 (dimer), Wales and Hodges, Chem. Phys. Lett. 286,
# 65 (1998). The rigid model is the limit of ours for stiff bonds, taken from two stiffnesses.
@pytest.mark.parametrize(("num_molecules", "published"), [(2, -6.24), (3, -16.73), (4, -27.87)])
def test_tip4p_has_its_published_minima(num_molecules, published):
    # The ring is the minimum but for two molecules, where it is a saddle: random starts find it.
    starts = [ring(num_molecules, TIP4P), *some_clusters(num_molecules, 3)]
    assert rigid_tip4p(starts) == pytest.approx(published, abs=0.01)


def test_tip4p_has_its_published_hexamer():
    pos, energies, _ = generate_minima(6, 60)
    lowest = pos[np.argsort(energies)[:8]]
    assert rigid_tip4p(lowest) == pytest.approx(-47.27, abs=0.02)
