"""Molecules as balls and sticks: bonds, direction, order."""

from __future__ import annotations

import numpy as np
import pytest

from torchkiln.core import ArgumentError
from torchkiln.drawing import Ball, Stick, common_size, element_colour, make_scene
from torchkiln.drawing._elements import covalent_radii
from torchkiln.drawing._scene import guess_bonds

WATER = np.array([[0.0, 0.0, 0.12], [0.0, 0.76, -0.48], [0.0, -0.76, -0.48]])
Z = np.array([8, 1, 1])


def bonds(z, pos):
    return guess_bonds(np.asarray(pos, dtype=float), covalent_radii(np.asarray(z)))


def test_atoms_of_a_molecule_are_bonded_and_those_of_neighbours_are_not():
    # The hydrogen bond between two molecules of water is 1.9 angstrom long.
    pair = np.concatenate([WATER, WATER + np.array([0.0, 0.0, 2.9])])
    assert bonds([*Z, *Z], pair) == [(0, 1), (0, 2), (3, 4), (3, 5)]


def test_usual_bonds_are_found_and_longer_ways_are_not():
    for z, length in [
        ((6, 6), 1.54),
        ((6, 1), 1.09),
        ((7, 7), 1.10),
        ((1, 1), 0.74),
        ((6, 17), 1.77),
    ]:
        assert bonds(z, [[0, 0, 0], [length, 0, 0]]) == [(0, 1)]
        assert bonds(z, [[0, 0, 0], [length + 1.0, 0, 0]]) == []


def test_many_atoms_are_looked_at_in_blocks():
    chain = np.zeros((2500, 3))
    chain[:, 0] = 1.5 * np.arange(2500)
    assert bonds([6] * 2500, chain) == [(i, i + 1) for i in range(2499)]


def test_a_flat_molecule_is_seen_from_above():
    scene = make_scene(Z, WATER)
    balls = [part for part in scene.parts if isinstance(part, Ball)]
    flat = {ball.atom: np.array([ball.x, ball.y]) for ball in balls}
    assert np.linalg.norm(flat[1] - flat[2]) == pytest.approx(1.52, rel=1e-6)
    assert all(ball.fading == 0 for ball in balls)
    assert sum(isinstance(part, Stick) for part in scene.parts) == 4


def test_turning_a_molecule_does_not_change_its_drawing():
    rng = np.random.default_rng(0)
    pos = rng.normal(size=(7, 3)) * [3, 2, 1]
    turn, _ = np.linalg.qr(rng.normal(size=(3, 3)))
    turn *= np.linalg.det(turn)
    sizes = [make_scene([6] * 7, points).size for points in (pos, pos @ turn + 5)]
    np.testing.assert_allclose(sizes[0], sizes[1], rtol=1e-9)
    assert make_scene([6] * 7, pos) == make_scene([6] * 7, pos)


def test_what_is_farther_away_comes_first_and_fades():
    scene = make_scene([6, 7, 8], [[0, 0, 0], [9, 0, 0], [4, 6, 3]])
    balls = [part for part in scene.parts if isinstance(part, Ball)]
    assert [ball.fading for ball in balls] == sorted((b.fading for b in balls), reverse=True)


def test_everything_lies_within_the_extent():
    pos = np.random.default_rng(1).normal(size=(12, 3)) * 3
    scene = make_scene([1, 6, 7, 8] * 3, pos)
    left, bottom, right, top = scene.extent
    for part in scene.parts:
        if isinstance(part, Ball):
            assert left <= part.x - part.radius <= part.x + part.radius <= right
            assert bottom <= part.y - part.radius <= part.y + part.radius <= top
        else:
            assert left <= min(part.x1, part.x2) <= max(part.x1, part.x2) <= right
    assert common_size([scene], least=1.0, margin=0.5)[0] == pytest.approx(right - left + 1)


@pytest.mark.parametrize("count", [1, 2])
def test_single_atoms_and_pairs_can_be_drawn(count):
    scene = make_scene([1] * count, [[0.0, 0.0, 0.8 * i] for i in range(count)])
    assert np.isfinite(scene.extent).all()
    assert common_size([scene], least=4.5, margin=0.0) == (4.5, 4.5)


def test_atoms_on_top_of_each_other_are_drawn_without_a_bond():
    scene = make_scene([6, 6], [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    assert all(isinstance(part, Ball) for part in scene.parts)


@pytest.mark.parametrize(
    ("z", "pos", "words"),
    [
        ([], np.zeros((0, 3)), r"got \[0\]"),
        ([1, 1], [[0, 0, 0]], r"\[1, 3\]"),
        ([1], [[0, 0, np.nan]], "not finite"),
    ],
)
def test_what_is_no_molecule_is_refused(z, pos, words):
    with pytest.raises(ArgumentError, match=words):
        make_scene(z, pos)


def test_every_element_has_a_radius_and_a_colour():
    radii = covalent_radii(np.arange(0, 119))
    assert ((radii > 0.2) & (radii < 3)).all()
    colours = [element_colour(z) for z in range(119)]
    assert all(len(colour) == 7 and colour.startswith("#") for colour in colours)
    assert (element_colour(8), element_colour(7)) == ("#ff0d0d", "#3050f8")
