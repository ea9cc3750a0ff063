import io
import os

import numpy as np
import pytest
import torch
from tqdm import tqdm

from torchkiln.core import OptionsError
from torchkiln.datasets.water import generate_minima, water_forces
from torchkiln.datasets.water._distinct import DistinctMinima
from torchkiln.datasets.water._generate import random_rotations, random_start, shaken
from torchkiln.datasets.water._relax import is_cluster


def test_all_that_is_generated_are_different_minima():
    pos, energies, starts = generate_minima(7, 30)
    again, forces = water_forces(torch.from_numpy(pos))
    known = DistinctMinima()
    assert pos.shape == (30, 7, 3, 3)
    np.testing.assert_allclose(energies, again.numpy(), atol=1e-9)
    assert forces.abs().max() < 2e-3
    assert all(is_cluster(one) for one in pos)
    assert all(known.add(*one) for one in zip(pos, energies, strict=True))
    assert starts[0] == 0
    assert (np.diff(starts) >= 0).all()


def test_the_seed_decides_and_the_number_of_threads_does_not(monkeypatch):
    first = generate_minima(5, 12, seed=3)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    same = generate_minima(5, 12, seed=3)
    other = generate_minima(5, 12, seed=4)
    for one, two in zip(first, same, strict=True):
        np.testing.assert_array_equal(one, two)
    assert not np.array_equal(first[0][0], other[0][0])


def test_asking_for_more_gives_the_same_ones_first():
    few, many = generate_minima(6, 10)[1], generate_minima(6, 20)[1]
    np.testing.assert_array_equal(few, many[:10])


def test_small_clusters_run_out_of_minima():
    with tqdm(file=io.StringIO()) as bar:
        pos, energies, _ = generate_minima(3, 50, bar=bar)
        assert bar.n == len(pos)
    assert 2 <= len(pos) < 15
    # The ring, with one free hydrogen on the other side than two.
    assert energies.min() == pytest.approx(-17.769, abs=1e-3)


def test_the_lowest_hexamer_is_found():
    # q-TIP4P/F; rigid TIP4P has -47.3 kcal/mol (docs/water.md).
    assert generate_minima(6, 60)[1].min() == pytest.approx(-50.647, abs=1e-3)


@pytest.mark.parametrize(("num_molecules", "count"), [(1, 5), (5, 0)])
def test_senseless_numbers_are_refused(num_molecules, count):
    with pytest.raises(OptionsError, match=f"num_molecules={num_molecules}, count={count}"):
        generate_minima(num_molecules, count)


def test_starts_are_molecules_at_rest_that_keep_apart():
    pos = random_start(30, np.random.default_rng(1))
    bonds = np.linalg.norm(pos[:, 1:] - pos[:, :1], axis=-1)
    apart = np.linalg.norm(pos[:, None, 0] - pos[:, 0], axis=-1)[np.triu_indices(30, 1)]
    np.testing.assert_allclose(bonds, 0.9419, rtol=1e-12)
    assert apart.min() > 2.6


def test_shaking_moves_every_molecule_and_keeps_it_whole():
    random = np.random.default_rng(2)
    pos = random_start(8, random)
    moved = shaken(pos, random)
    np.testing.assert_allclose(
        np.linalg.norm(moved[:, 1:] - moved[:, :1], axis=-1), 0.9419, rtol=1e-9
    )
    assert (np.linalg.norm(moved[:, 0] - pos[:, 0], axis=-1) > 0).all()


def test_rotations_keep_lengths_and_hands():
    rotations = random_rotations(50, np.random.default_rng(3))
    identity = rotations @ rotations.transpose(0, 2, 1)
    np.testing.assert_allclose(identity, np.broadcast_to(np.eye(3), (50, 3, 3)), atol=1e-12)
    np.testing.assert_allclose(np.linalg.det(rotations), 1.0, atol=1e-12)
