"""Compiled loops that relax one cluster: energy with analytic forces, and L-BFGS.

The formulas are those of `_potential.water_energy`; a test compares them. Coordinates are kept axis
by axis, [3, num_atoms], so that loops over partners of an atom become vector instructions. Nothing
here holds the GIL: clusters are relaxed in threads, each on its own, and therefore the result of
one does not depend on the others.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

from torchkiln.datasets.water._potential import COULOMB_KCAL_MOL

Floats = NDArray[np.float64]

# kcal/mol for each molecule. Minima have -3 to -12: what falls below has a hydrogen in the charge
# of another molecule, from where Coulomb's law lets it fall for ever.
_COLLAPSED = -100.0
_MEMORY = 12  # pairs of steps and gradient changes that L-BFGS keeps
_SHORTEST = 1e-10  # share of a step below which its direction is given up


# What is not called from outside is inlined for certain and never cached. Otherwise the code that
# is linked depends on what was compiled or loaded before; it rounds differently, and with it the
# whole walk over minima changes between a first and a second run.
#
# Sums may be reordered ("reassoc"), or loops over partners could not be vectorised; unlike the
# whole of fastmath, this leaves NaN and infinity alone, by which a collapse is noticed.
_SUMS = {"reassoc", "contract", "arcp"}
_CALLEE = {"nogil": True, "forceinline": True, "error_model": "numpy"}
_ENTRY = {"nogil": True, "cache": True, "error_model": "numpy"}


@njit(**_CALLEE, fastmath=_SUMS)  # type: ignore[untyped-decorator]
def _energy_and_gradient(
    pos: Floats, gradient: Floats, sites: Floats, site_gradient: Floats, model: Floats
) -> float:
    """Return the energy of a cluster; its gradient goes into `gradient`.

    Args:
        pos: [3, num_atoms], atoms in the order O H H.
        gradient: [3, num_atoms], overwritten.
        sites: [5, num_atoms], scratch: places, charges and pulls of H, H, M of each molecule.
        site_gradient: [3, num_atoms], scratch.
        model: `WaterModel.numbers`.
    """
    depth, alpha, rest, stiffness, degrees, epsilon, sigma, charge, gamma = model
    rest_angle = degrees * (math.pi / 180.0)
    num_atoms = pos.shape[1]
    energy = 0.0
    for axis in range(3):
        for oxygen in range(0, num_atoms, 3):
            first, second = pos[axis, oxygen + 1], pos[axis, oxygen + 2]
            sites[axis, oxygen] = first
            sites[axis, oxygen + 1] = second
            middle = (1.0 - gamma) * 0.5 * (first + second)
            sites[axis, oxygen + 2] = gamma * pos[axis, oxygen] + middle
            sites[3, oxygen + axis] = charge if axis < 2 else -2.0 * charge
        for atom in range(num_atoms):
            gradient[axis, atom] = 0.0
            site_gradient[axis, atom] = 0.0

    # Coulomb: each charge with all charges of later molecules, which are contiguous. Only loops
    # that count from 0 and hold few arrays become vector instructions, hence slices and two loops.
    for site in range(num_atoms - 3):
        later = 3 * (site // 3) + 3
        count = num_atoms - later
        sx, sy, sz = sites[0, later:], sites[1, later:], sites[2, later:]
        charges, pulls = sites[3, later:], sites[4, later:]
        x, y, z = sites[0, site], sites[1, site], sites[2, site]
        own = COULOMB_KCAL_MOL * sites[3, site]
        total = 0.0
        for other in range(count):
            dx, dy, dz = sx[other] - x, sy[other] - y, sz[other] - z
            inverse = 1.0 / math.sqrt(dx * dx + dy * dy + dz * dz)
            term = own * charges[other] * inverse
            total += term
            pulls[other] = term * inverse * inverse
        energy += total
        for axis in range(3):
            places, pushed = sites[axis, later:], site_gradient[axis, later:]
            place = sites[axis, site]
            total = 0.0
            for other in range(count):
                force = pulls[other] * (places[other] - place)
                total += force
                pushed[other] -= force
            site_gradient[axis, site] += total

    for oxygen in range(0, num_atoms, 3):
        for other in range(oxygen + 3, num_atoms, 3):
            dx = pos[0, other] - pos[0, oxygen]
            dy = pos[1, other] - pos[1, oxygen]
            dz = pos[2, other] - pos[2, oxygen]
            inverse = 1.0 / (dx * dx + dy * dy + dz * dz)
            sixth = (sigma * sigma * inverse) ** 3
            energy += 4.0 * epsilon * (sixth * sixth - sixth)
            pull = 24.0 * epsilon * (2.0 * sixth * sixth - sixth) * inverse
            gradient[0, oxygen] += pull * dx
            gradient[1, oxygen] += pull * dy
            gradient[2, oxygen] += pull * dz
            gradient[0, other] -= pull * dx
            gradient[1, other] -= pull * dy
            gradient[2, other] -= pull * dz

    for oxygen in range(0, num_atoms, 3):
        ax = pos[0, oxygen + 1] - pos[0, oxygen]
        ay = pos[1, oxygen + 1] - pos[1, oxygen]
        az = pos[2, oxygen + 1] - pos[2, oxygen]
        bx = pos[0, oxygen + 2] - pos[0, oxygen]
        by = pos[1, oxygen + 2] - pos[1, oxygen]
        bz = pos[2, oxygen + 2] - pos[2, oxygen]
        a = math.sqrt(ax * ax + ay * ay + az * az)
        b = math.sqrt(bx * bx + by * by + bz * bz)
        u, v = alpha * (a - rest), alpha * (b - rest)
        energy += depth * (u * u - u**3 + 7.0 / 12.0 * u**4)
        energy += depth * (v * v - v**3 + 7.0 / 12.0 * v**4)
        slope_a = depth * alpha * (2.0 * u - 3.0 * u * u + 7.0 / 3.0 * u**3) / a
        slope_b = depth * alpha * (2.0 * v - 3.0 * v * v + 7.0 / 3.0 * v**3) / b
        cosine = (ax * bx + ay * by + az * bz) / (a * b)
        angle = math.acos(min(1.0, max(-1.0, cosine)))
        energy += 0.5 * stiffness * (angle - rest_angle) ** 2
        # d(angle) = -d(cosine)/sin(angle); a stretched-out molecule would divide by zero.
        sine = math.sqrt(max(1e-12, 1.0 - cosine * cosine))
        turn = -stiffness * (angle - rest_angle) / sine
        along_a = slope_a - turn * cosine / (a * a)
        along_b = slope_b - turn * cosine / (b * b)
        across = turn / (a * b)
        for axis in range(3):
            to_a = pos[axis, oxygen + 1] - pos[axis, oxygen]
            to_b = pos[axis, oxygen + 2] - pos[axis, oxygen]
            on_a = along_a * to_a + across * to_b
            on_b = along_b * to_b + across * to_a
            on_m = site_gradient[axis, oxygen + 2]
            shared = 0.5 * (1.0 - gamma) * on_m
            gradient[axis, oxygen] += gamma * on_m - on_a - on_b
            gradient[axis, oxygen + 1] += site_gradient[axis, oxygen] + shared + on_a
            gradient[axis, oxygen + 2] += site_gradient[axis, oxygen + 1] + shared + on_b
    return energy


@njit(**_ENTRY)  # type: ignore[untyped-decorator]
def evaluate(pos: Floats, model: Floats, gradient: Floats) -> float:
    """Return the energy of a cluster `pos` [3, num_atoms]; its gradient goes into `gradient`."""
    scratch, site_scratch = np.empty((5, pos.shape[1])), np.empty(pos.shape)
    energy: float = _energy_and_gradient(pos, gradient, scratch, site_scratch, model)
    return energy


@njit(**_ENTRY)  # type: ignore[untyped-decorator]
def relax(
    pos: Floats, model: Floats, tolerance: float, max_steps: int, max_move: float
) -> tuple[float, float, int]:
    """Move the atoms of `pos` [3, num_atoms] downhill, in place, to the next minimum.

    Args:
        pos: Coordinates in angstrom; atoms in the order O H H.
        model: `WaterModel.numbers`.
        tolerance: Ends when no component of a force exceeds this, kcal/mol/angstrom.
        max_steps: Ends after so many evaluations in any case.
        max_move: No coordinate moves further in one step, angstrom.

    Returns:
        Energy in kcal/mol, the largest component of a force (infinite for a collapsed cluster), and
        the number of evaluations.
    """
    size = pos.size
    shape = pos.shape
    scratch, site_scratch = np.empty((5, shape[1])), np.empty(shape)
    new_gradient, trial = np.empty(shape), np.empty(shape)
    flat, flat_trial, new_slope = pos.reshape(size), trial.reshape(size), new_gradient.reshape(size)
    slope, direction = np.zeros(size), np.zeros(size)
    steps, changes = np.empty((_MEMORY, size)), np.empty((_MEMORY, size))
    inverse_dots, weights = np.empty(_MEMORY), np.empty(_MEMORY)
    kept = 0  # pairs in memory; the newest has the number kept - 1, modulo _MEMORY
    energy, largest = np.inf, np.inf
    length = downhill = 0.0  # the first step goes nowhere, it only evaluates
    evaluations = 0
    while True:
        for i in range(size):
            flat_trial[i] = flat[i] + length * direction[i]
        new_energy = _energy_and_gradient(trial, new_gradient, scratch, site_scratch, model)
        evaluations += 1

        # The energy must fall enough (Armijo). Near a minimum, differences of energies drown in
        # rounding, so that a rise within it is accepted.
        noise = 1e-13 * max(1.0, abs(new_energy))
        shorter = False
        if new_energy <= energy + 1e-4 * length * downhill + noise:
            m = kept % _MEMORY
            dot = largest = 0.0
            for i in range(size):
                steps[m, i] = length * direction[i]
                changes[m, i] = new_slope[i] - slope[i]
                dot += steps[m, i] * changes[m, i]
                flat[i] = flat_trial[i]
                slope[i] = new_slope[i]
                largest = max(largest, abs(slope[i]))
            energy = new_energy
            # Where the curvature along the step is not positive, the pair would spoil the memory.
            if dot > 1e-12:
                inverse_dots[m] = 1.0 / dot
                kept += 1
            if not energy > _COLLAPSED * shape[1] / 3:
                return energy, np.inf, evaluations
        elif length > _SHORTEST:
            length *= 0.25
            shorter = True
        elif kept:
            kept = 0  # the memory led astray: begin anew with steepest descent
        else:
            return energy, largest, evaluations
        if largest <= tolerance or evaluations >= max_steps:
            return energy, largest, evaluations
        if shorter:
            continue

        # The two loops of L-BFGS: direction = -(approximate inverse Hessian) gradient.
        for i in range(size):
            direction[i] = -slope[i]
        oldest = max(0, kept - _MEMORY)
        for pair in range(kept - 1, oldest - 1, -1):
            m = pair % _MEMORY
            weights[m] = inverse_dots[m] * _dot(steps[m], direction)
            _add(direction, -weights[m], changes[m])
        scale = 1e-3  # angstrom^2 mol/kcal: about one over the stiffness of a bond
        if kept:
            m = (kept - 1) % _MEMORY
            scale = 1.0 / (inverse_dots[m] * _dot(changes[m], changes[m]))
        for i in range(size):
            direction[i] *= scale
        for pair in range(oldest, kept):
            m = pair % _MEMORY
            _add(direction, weights[m] - inverse_dots[m] * _dot(changes[m], direction), steps[m])
        downhill = _dot(direction, slope)
        longest = 0.0
        for i in range(size):
            longest = max(longest, abs(direction[i]))
        length = min(1.0, max_move / longest)


@njit(**_CALLEE)  # type: ignore[untyped-decorator]
def _dot(a: Floats, b: Floats) -> float:
    """Return the scalar product of vectors whose length is a multiple of 3, in three sums."""
    first = second = third = 0.0
    for i in range(0, a.size, 3):
        first += a[i] * b[i]
        second += a[i + 1] * b[i + 1]
        third += a[i + 2] * b[i + 2]
    return first + second + third


@njit(**_CALLEE)  # type: ignore[untyped-decorator]
def _add(target: Floats, factor: float, other: Floats) -> None:
    for i in range(target.size):
        target[i] += factor * other[i]
