"""Water clusters made here: random starts, relaxed, and led on by basin hopping."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from torchkiln.core import OptionsError
from torchkiln.datasets.water._distinct import DistinctMinima
from torchkiln.datasets.water._potential import Q_TIP4P_F
from torchkiln.datasets.water._relax import Relaxed, relax_cluster

if TYPE_CHECKING:
    from tqdm import tqdm

Floats = NDArray[np.float64]

# Raised whenever the same seed gives other clusters.
GENERATOR_VERSION = 1
# A walk goes from one random start over so many minima.
MINIMA_PER_WALK = 10
# Small clusters have few minima (three molecules: about five), so that not every wish can be met. A
# walk brings about eight new ones as long as there are many.
_MIN_WALKS, _WALKS_PER_WISH, _MAX_FRUITLESS_WALKS = 16, 0.3, 16

_START_DENSITY = 0.03  # molecules per cubic angstrom: water's is 0.033
_START_APART_ANGSTROM = 2.6
_SHAKE_ANGSTROM = 0.35
_TURNED_SHARE = 0.3
# kcal/mol; about half a hydrogen bond, so that walks leave funnels but lead downwards.
_HOP_TEMPERATURE = 1.5


def generate_minima(
    num_molecules: int, count: int, *, seed: int = 0, bar: tqdm[Any] | None = None
) -> tuple[Floats, Floats, NDArray[np.int64]]:
    """Return up to `count` different minima of the energy of `num_molecules` water molecules.

    The energy is q-TIP4P/F's. The result depends on the arguments only, on one kind of processor:
    not on the number of threads, nor on other sizes. Asking for more gives the same ones first
    (those of the first `max_walks` walks).

    Args:
        num_molecules: Size of the clusters, at least 2.
        count: How many are wanted; sizes below 6 have fewer than a hundred minima.
        seed: Chooses the random starts.
        bar: Advanced by one for each minimum.

    Returns:
        Coordinates in angstrom [found, num_molecules, 3, 3], binding energies in kcal/mol [found],
        and the random start that each came from [found].
    """
    if num_molecules < 2 or count < 1:
        raise OptionsError(
            f"clusters have at least 2 molecules and sets at least 1 cluster, got "
            f"num_molecules={num_molecules}, count={count}"
        )
    known = DistinctMinima()
    pos: list[Floats] = []
    energies: list[float] = []
    starts: list[int] = []
    fruitless = 0
    walks = _walks(num_molecules, seed, max_walks(count))
    with contextlib.closing(walks):
        for start, walk in enumerate(walks):
            fruitless += 1
            for minimum in walk:
                if len(pos) < count and known.add(minimum.pos, minimum.energy):
                    pos.append(minimum.pos)
                    energies.append(minimum.energy)
                    starts.append(start)
                    fruitless = 0
                    if bar is not None:
                        bar.update(1)
            if len(pos) == count or fruitless == _MAX_FRUITLESS_WALKS:
                break
    shape = (len(pos), num_molecules, 3, 3)
    return np.array(pos).reshape(shape), np.array(energies), np.array(starts, dtype=np.int64)


def max_walks(count: int) -> int:
    """Return after how many walks `generate_minima` no longer hopes for `count` minima."""
    return _MIN_WALKS + int(_WALKS_PER_WISH * count)


def _walks(num_molecules: int, seed: int, count: int) -> Generator[list[Relaxed], None, None]:
    """Yield the minima of walk after walk, computed in threads a few walks ahead."""
    num_threads = len(os.sched_getaffinity(0))
    pool = ThreadPoolExecutor(num_threads)
    ahead: deque[Future[list[Relaxed]]] = deque()
    try:
        for walk in range(count):
            ahead.append(pool.submit(walk_minima, num_molecules, seed, walk))
            if len(ahead) > 2 * num_threads:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def walk_minima(num_molecules: int, seed: int, walk: int) -> list[Relaxed]:
    """Return the minima of one walk, in the order of their discovery; twice-found ones stay."""
    random = np.random.default_rng([seed, num_molecules, walk])
    here: Relaxed | None = None
    found = []
    for _ in range(MINIMA_PER_WALK):
        start = random_start(num_molecules, random) if here is None else shaken(here.pos, random)
        there = relax_cluster(start)
        threshold = random.exponential(_HOP_TEMPERATURE)
        if not (there.converged and there.is_cluster):
            continue
        found.append(there)
        if here is None or there.energy < here.energy + threshold:
            here = there
    return found


def random_start(num_molecules: int, random: np.random.Generator) -> Floats:
    """Return molecules at rest, turned at random, in a ball about as dense as water.

    Oxygens keep apart, or charges could fall into each other: `[num_molecules, 3, 3]`.
    """
    radius = (3 / (4 * np.pi) * num_molecules / _START_DENSITY) ** (1 / 3)
    oxygens = np.empty((0, 3))
    while len(oxygens) < num_molecules:
        direction = random.normal(size=3)
        place = direction / np.linalg.norm(direction) * radius * random.random() ** (1 / 3)
        if (np.linalg.norm(oxygens - place, axis=1) > _START_APART_ANGSTROM).all():
            oxygens = np.concatenate([oxygens, place[None]])
        else:
            radius *= 1.002  # a ball that is full by chance grows until the rest fits
    angle = np.radians(Q_TIP4P_F.angle_degrees)
    arms = np.array([[0, 0, 0], [1, 0, 0], [np.cos(angle), np.sin(angle), 0]])
    at_rest = Q_TIP4P_F.bond_angstrom * arms
    return oxygens[:, None] + at_rest @ random_rotations(num_molecules, random)


def shaken(pos: Floats, random: np.random.Generator) -> Floats:
    """Return a minimum pushed out of its basin: all molecules moved a little, some turned."""
    oxygens = pos[:, :1]
    turned = random.random(len(pos)) < _TURNED_SHARE
    turned[random.integers(len(pos))] = True
    rotations = np.where(turned[:, None, None], random_rotations(len(pos), random), np.eye(3))
    moves = random.normal(scale=_SHAKE_ANGSTROM, size=(len(pos), 1, 3))
    return oxygens + moves + (pos - oxygens) @ rotations


def random_rotations(count: int, random: np.random.Generator) -> Floats:
    """Return `count` rotations, [count, 3, 3], every orientation equally likely."""
    # Normalised Gaussian quaternions are uniform on the sphere of rotations.
    quaternions = random.normal(size=(count, 4))
    w, x, y, z = (quaternions / np.linalg.norm(quaternions, axis=1, keepdims=True)).T
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ]
    return np.array(rows).transpose(2, 0, 1)
