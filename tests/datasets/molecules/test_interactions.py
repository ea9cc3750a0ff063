"""Interaction graphs are exactly those of the rule: k nearest neighbours within the cutoff."""

import numpy as np
import pytest
import torch
from _random_molecules import random_molecules

from torchkiln.core import OptionsError
from torchkiln.datasets import Molecules, directed_edges, interaction_pairs
from torchkiln.datasets.molecules import _interactions as module


def reference_messages(pos, k, cutoff):
    """Return all messages (from, to): each atom's k nearest within the cutoff, by brute force."""
    squares = ((pos[:, None] - pos[None]) ** 2).sum(axis=-1)
    messages = set()
    for i in range(len(pos)):
        others = sorted((squares[i, j], j) for j in range(len(pos)) if j != i)
        messages |= {(j, i) for s, j in others[:k] if s <= cutoff**2}
    return messages


def messages_of(pairs, molecule):
    here = slice(pairs.offsets[molecule], pairs.offsets[molecule + 1])
    messages = set()
    for (i, j), ways in zip(pairs.edge_index[:, here].T, pairs.edge_ways[here], strict=True):
        messages |= {(i, j)} if ways & 1 else set()
        messages |= {(j, i)} if ways & 2 else set()
    return messages


@pytest.mark.parametrize("k", [None, 1, 2, 5, 13, 100])
@pytest.mark.parametrize("cutoff", [1.0, 2.0, 3.3, 50.0])
@pytest.mark.parametrize("lattice", [False, True])
def test_messages_are_those_of_brute_force(k, cutoff, lattice):
    molecules = random_molecules(lattice=lattice)
    pairs = interaction_pairs(molecules, k=k, cutoff_angstrom=cutoff)
    for i in range(len(molecules)):
        pos = molecules.pos[molecules.offsets[i] : molecules.offsets[i + 1]]
        assert messages_of(pairs, i) == reference_messages(pos, k, cutoff)


@pytest.mark.parametrize("k", [None, 4])
def test_pairs_are_unordered_sorted_and_have_their_distance(k):
    molecules = random_molecules(seed=3)
    pairs = interaction_pairs(molecules, k=k, cutoff_angstrom=4.0)
    assert pairs.edge_index.dtype == np.int64
    assert (pairs.edge_weight.dtype, pairs.edge_ways.dtype) == (np.float32, np.uint8)
    assert pairs.edge_ways.min() >= 1
    for i in range(len(molecules)):
        here = slice(pairs.offsets[i], pairs.offsets[i + 1])
        edges = [tuple(edge) for edge in pairs.edge_index[:, here].T.tolist()]
        assert edges == sorted(set(edges))
        assert all(first < second for first, second in edges)
        pos = molecules.pos[molecules.offsets[i] : molecules.offsets[i + 1]]
        for (first, second), weight in zip(edges, pairs.edge_weight[here], strict=True):
            assert weight == np.float32(np.sqrt(((pos[first] - pos[second]) ** 2).sum()))


def test_without_a_limit_every_pair_goes_both_ways():
    pairs = interaction_pairs(random_molecules(), cutoff_angstrom=3.0)
    assert set(pairs.edge_ways.tolist()) == {3}


def test_an_atom_just_at_the_cutoff_is_a_neighbour():
    line = Molecules([0, 3], [1, 1, 1], [[0.0, 0, 0], [2, 0, 0], [4.5, 0, 0]])
    assert interaction_pairs(line, cutoff_angstrom=2.0).edge_index.T.tolist() == [[0, 1]]
    assert interaction_pairs(line, cutoff_angstrom=2.5).edge_index.T.tolist() == [[0, 1], [1, 2]]


def test_of_equals_the_lower_index_is_heard():
    # All three others are 1 away from atom 1; it hears 0 alone, and everybody hears it.
    cross = Molecules(
        [0, 4], [6, 6, 6, 6], [[1.0, 0, 0], [0, 0, 0], [-1, 0, 0], [0, 1, 0]], source="cross"
    )
    pairs = interaction_pairs(cross, k=1)
    assert pairs.edge_index.T.tolist() == [[0, 1], [1, 2], [1, 3]]
    assert pairs.edge_ways.tolist() == [3, 1, 1]


def test_single_atoms_hear_nobody():
    pairs = interaction_pairs(Molecules([0, 1, 2], [1, 6], np.zeros((2, 3))), k=3)
    assert pairs.offsets.tolist() == [0, 0, 0]
    assert pairs.edge_index.shape == (2, 0)


def test_pieces_of_work_do_not_change_the_result(monkeypatch):
    molecules = random_molecules(200)
    whole = interaction_pairs(molecules, k=3)
    monkeypatch.setattr(module, "_ATOMS_PER_PIECE", 7)
    pieces = interaction_pairs(molecules, k=3)
    for name in ("offsets", "edge_index", "edge_weight", "edge_ways"):
        np.testing.assert_array_equal(getattr(whole, name), getattr(pieces, name))


@pytest.mark.parametrize("k", [0, -1, 2.5, True, "all"])
def test_k_is_a_number_of_neighbours(k):
    with pytest.raises(OptionsError, match="k must be a number of neighbours"):
        interaction_pairs(random_molecules(), k=k)


@pytest.mark.parametrize("cutoff", [0.0, -1.0, float("nan"), float("inf")])
def test_a_cutoff_of_interactions_is_a_positive_length(cutoff):
    with pytest.raises(OptionsError, match="positive length"):
        interaction_pairs(random_molecules(), cutoff_angstrom=cutoff)


def test_directed_edges_hold_one_edge_for_each_message():
    molecules = random_molecules(1, smallest=12, largest=12)
    pairs = interaction_pairs(molecules, k=3)
    edge_index, edge_weight = directed_edges(
        torch.from_numpy(pairs.edge_index),
        torch.from_numpy(pairs.edge_weight),
        torch.from_numpy(pairs.edge_ways),
    )
    found = [tuple(edge) for edge in edge_index.T.tolist()]
    assert set(found) == reference_messages(molecules.pos, 3, 10.0)
    assert found == sorted(found, key=lambda edge: edge[::-1])
    assert torch.bincount(edge_index[1]).tolist() == [3] * 12
    pos = torch.from_numpy(molecules.pos)
    lengths = (pos[edge_index[0]] - pos[edge_index[1]]).norm(dim=1)
    torch.testing.assert_close(edge_weight, lengths.float())


def test_filler_has_no_direction_and_vanishes():
    edge_index = torch.tensor([[0, 1, 5], [1, 2, 5]])
    ways = torch.tensor([3, 2, 0], dtype=torch.uint8)
    edges, weights = directed_edges(edge_index, torch.tensor([1.0, 2.0, 0.0]), ways)
    assert edges.tolist() == [[1, 0, 2], [0, 1, 1]]
    assert weights.tolist() == [1.0, 1.0, 2.0]


def test_real_molecules_have_as_many_neighbours_as_counted(molecules):
    from torchkiln.datasets._sizes import count_neighbors
    from torchkiln.datasets.qm9._molecules import to_molecules

    pairs = interaction_pairs(to_molecules(molecules, "tables"), cutoff_angstrom=3.0)
    assert (2 * np.diff(pairs.offsets)).tolist() == count_neighbors(molecules, 3.0).tolist()
