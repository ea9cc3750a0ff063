import numpy as np
import pytest
import torch
from _clusters import some_clusters

from torchkiln.core import OptionsError
from torchkiln.datasets.water import relax_cluster, water_forces
from torchkiln.datasets.water._relax import FORCE_TOLERANCE, is_cluster


def test_relaxation_ends_where_no_force_is_left():
    start = some_clusters(6, 1)[0]
    relaxed = relax_cluster(start)
    energy, forces = water_forces(torch.from_numpy(relaxed.pos[None]))
    assert relaxed.converged
    assert relaxed.is_cluster
    assert forces.abs().max() <= FORCE_TOLERANCE
    assert relaxed.energy == pytest.approx(energy.item(), abs=1e-9)
    assert relaxed.energy < water_forces(torch.from_numpy(start[None]))[0].item() - 10


def test_a_minimum_stays_where_it_is():
    once = relax_cluster(some_clusters(4, 1)[0])
    again = relax_cluster(once.pos)
    assert again.num_evaluations == 1
    np.testing.assert_array_equal(again.pos, once.pos)


def test_the_minimum_is_that_of_a_turned_and_moved_cluster():
    pos = some_clusters(3, 1)[0]
    turned = pos[..., [1, 2, 0]] + 5.0
    assert relax_cluster(turned).energy == pytest.approx(relax_cluster(pos).energy, abs=1e-4)


def test_what_is_given_is_not_changed():
    pos = some_clusters(3, 1)[0]
    before = pos.copy()
    relax_cluster(pos)
    np.testing.assert_array_equal(pos, before)


def test_a_collapse_is_not_taken_for_a_minimum():
    pos = some_clusters(2, 1)[0]
    # A hydrogen within the negative charge of the other molecule: it falls in for good.
    pos[1] += pos[0, 0] + 0.05 - pos[1, 1]
    assert not relax_cluster(pos).converged


@pytest.mark.parametrize("shape", [(4, 3), (2, 2, 3), (2, 3, 3, 1)])
def test_other_shapes_are_refused(shape):
    with pytest.raises(OptionsError, match=r"num_molecules, 3, 3.*got shape"):
        relax_cluster(np.zeros(shape))


def test_coordinates_that_are_not_finite_are_refused():
    pos = some_clusters(2, 1)[0]
    pos[0, 0, 0] = np.nan
    with pytest.raises(OptionsError, match="finite"):
        relax_cluster(pos)


def test_a_cluster_hangs_together_and_has_whole_molecules():
    pos = relax_cluster(some_clusters(4, 1)[0]).pos
    assert is_cluster(pos)
    apart = pos.copy()
    apart[0] += 20.0
    assert not is_cluster(apart)
    broken = pos.copy()
    broken[2, 1] += 1.0
    assert not is_cluster(broken)
    merged = pos.copy()
    merged[0] += pos[1, 0] - pos[0, 0] + 0.5
    assert not is_cluster(merged)
