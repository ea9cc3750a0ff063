"""A molecule as balls and sticks on a plane, from back to front."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchkiln.core import ArgumentError
from torchkiln.drawing._elements import covalent_radii

Points = NDArray[np.float64]

# How much longer than the sum of covalent radii a bond may be, and how short two atoms may be
# apart without lying on each other.
_BOND_MARGIN = 0.4
_SHORTEST_BOND = 0.4
_STICK_WIDTH = 0.2
# What lies this much deeper (in angstrom) than the front fades by `_FADING`.
_FADING_DEPTH = 6.0
_FADING = 0.6
# Atoms in one block of distances.
_BLOCK = 1000


@dataclass(frozen=True, slots=True)
class Ball:
    """An atom: where its centre is drawn, how large, and how much of it fades (0 to 1)."""

    x: float
    y: float
    radius: float
    z: int
    fading: float
    atom: int


@dataclass(frozen=True, slots=True)
class Stick:
    """Half of a bond, in the colour of the atom that it begins at."""

    x1: float
    y1: float
    x2: float
    y2: float
    width: float
    z: int
    fading: float


@dataclass(frozen=True, slots=True)
class Scene:
    """What to draw, in this order; all lies within `extent` (left, bottom, right, top)."""

    parts: tuple[Ball | Stick, ...]
    extent: tuple[float, float, float, float]

    @property
    def size(self) -> tuple[float, float]:
        """Width and height."""
        left, bottom, right, top = self.extent
        return right - left, top - bottom

    def frame(self, width: float, height: float) -> tuple[float, float, float, float]:
        """Return a rectangle around the middle of the scene (left, bottom, right, top)."""
        left, bottom, right, top = self.extent
        x, y = (left + right) / 2, (bottom + top) / 2
        return x - width / 2, y - height / 2, x + width / 2, y + height / 2


def common_size(scenes: Sequence[Scene], *, least: float, margin: float) -> tuple[float, float]:
    """Return width and height of a frame that each scene fits into, at the same scale.

    Args:
        scenes: What is drawn beside each other.
        least: Both are at least this, so that a single atom does not fill its drawing.
        margin: Around each scene.
    """
    widths, heights = zip(*(scene.size for scene in scenes), strict=True)
    return max(least, *widths) + 2 * margin, max(least, *heights) + 2 * margin


def make_scene(z: Any, pos: Any) -> Scene:
    """Return a molecule, turned so that its longest axes lie in the plane of the drawing.

    The same molecule gives the same scene. Bonds are guessed: atoms are bonded if they are nearer
    to each other than the sum of their covalent radii and 0.4 angstrom.

    Args:
        z: Atomic numbers, [num_atoms].
        pos: Coordinates in angstrom, [num_atoms, 3].

    Raises:
        ArgumentError: There is no atom, shapes do not fit, or a coordinate is not finite.
    """
    numbers, points = np.asarray(z, dtype=np.int64), np.asarray(pos, dtype=np.float64)
    if numbers.ndim != 1 or not len(numbers) or points.shape != (len(numbers), 3):
        raise ArgumentError(
            "a molecule needs atomic numbers of shape [num_atoms] and positions of shape "
            f"[num_atoms, 3], got {list(numbers.shape)} and {list(points.shape)}"
        )
    if not np.isfinite(points).all():
        raise ArgumentError("a molecule with coordinates that are not finite cannot be drawn")
    turned = _turn(points)
    covalent = covalent_radii(numbers)
    radii = 0.2 + 0.25 * covalent
    near, far = float(turned[:, 2].max()), float(turned[:, 2].min())

    def fading(depth: float) -> float:
        return _FADING * min((near - depth) / max(_FADING_DEPTH, near - far), 1.0)

    # Mild perspective: what is nearer looks larger.
    distance = near + 4 * (np.ptp(turned, axis=0).max() + 2)
    scale = (distance - near) / (distance - turned[:, 2])
    flat = turned[:, :2] * scale[:, None]
    layers: list[tuple[float, Ball | Stick]] = []
    for atom, (x, y) in enumerate(flat.tolist()):
        depth = float(turned[atom, 2])
        ball = Ball(x, y, float(radii[atom] * scale[atom]), int(numbers[atom]), fading(depth), atom)
        layers.append((depth, ball))
    for first, second in guess_bonds(turned, covalent):
        layers += _sticks(turned, radii, numbers, scale, first, second, fading)
    layers.sort(key=lambda layer: layer[0])
    return Scene(tuple(part for _, part in layers), _extent(flat, radii * scale))


def guess_bonds(pos: Points, radii: Points) -> list[tuple[int, int]]:
    """Return the pairs of atoms that are as near to each other as bonded ones."""
    bonds: list[tuple[int, int]] = []
    for start in range(0, len(pos), _BLOCK):
        block = slice(start, start + _BLOCK)
        distances = np.linalg.norm(pos[block, None] - pos[None], axis=2)
        limits = radii[block, None] + radii[None] + _BOND_MARGIN
        near = (distances < limits) & (distances > _SHORTEST_BOND)
        rows, columns = np.nonzero(near)
        pairs = zip((rows + start).tolist(), columns.tolist(), strict=True)
        bonds += [(first, second) for first, second in pairs if first < second]
    return bonds


def _turn(points: Points) -> Points:
    """Return the points with their longest axis along x, and their shortest towards the viewer."""
    centred = points - points.mean(axis=0)
    _, _, axes = np.linalg.svd(centred, full_matrices=True)
    # Of the two directions of an axis, that in which its largest part is positive.
    signs = np.sign(axes[np.arange(3), np.abs(axes).argmax(axis=1)])
    axes = axes * signs[:, None]
    axes[2] *= np.sign(np.linalg.det(axes))  # turned, never mirrored
    turned: Points = centred @ axes.T
    return turned


def _sticks(
    points: Points,
    radii: Points,
    numbers: NDArray[np.int64],
    scale: Points,
    first: int,
    second: int,
    fading: Any,
) -> list[tuple[float, Stick]]:
    """Return both halves of a bond, which begin and end just inside its balls."""
    way = points[second] - points[first]
    length = float(np.linalg.norm(way))
    gaps = [min(0.94 * float(radii[atom]) / length, 0.45) for atom in (first, second)]
    ends = points[first] + gaps[0] * way, points[second] - gaps[1] * way
    width = _STICK_WIDTH * float(scale[[first, second]].mean())
    sticks = []
    for atom, end in zip((first, second), ends, strict=True):
        middle = (ends[0] + ends[1]) / 2
        factor = float(scale[[first, second]].mean())
        own = float(scale[atom])
        depth = float((end[2] + middle[2]) / 2)
        stick = Stick(
            float(end[0] * own),
            float(end[1] * own),
            float(middle[0] * factor),
            float(middle[1] * factor),
            width,
            int(numbers[atom]),
            fading(depth),
        )
        sticks.append((depth, stick))
    return sticks


def _extent(flat: Points, radii: Points) -> tuple[float, float, float, float]:
    low, high = (flat - radii[:, None]).min(axis=0), (flat + radii[:, None]).max(axis=0)
    return float(low[0]), float(low[1]), float(high[0]), float(high[1])
