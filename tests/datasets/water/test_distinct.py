import numpy as np
from _clusters import some_clusters

from torchkiln.datasets.water._distinct import DistinctMinima, fingerprint


def test_the_same_minimum_in_another_guise_is_a_duplicate():
    pos = some_clusters(5, 1)[0]
    known = DistinctMinima()
    assert known.add(pos, -30.0)
    moved = pos[..., [2, 0, 1]] + 3.0
    mirrored = pos * np.array([1.0, 1.0, -1.0])
    renamed = pos[::-1][:, [0, 2, 1]]
    for same in (pos, moved, mirrored, renamed):
        assert not known.add(same, -30.0 + 1e-5)
    assert len(known) == 1


def test_another_energy_or_another_shape_is_another_minimum():
    first, second = some_clusters(5, 2)
    known = DistinctMinima()
    assert known.add(first, -30.0)
    assert known.add(first, -30.1)
    assert known.add(second, -30.0)
    assert not known.add(second, -30.0)
    assert not known.add(first, -30.1)
    assert len(known) == 3


def test_a_fingerprint_has_every_distance_once():
    pos = some_clusters(3, 1)[0]
    assert len(fingerprint(pos)) == 9 * 8 // 2
    atoms = pos.reshape(-1, 3)
    between = np.linalg.norm(atoms[:, None] - atoms, axis=-1)[np.triu_indices(9, 1)]
    np.testing.assert_allclose(np.sort(fingerprint(pos)), np.sort(between), rtol=1e-12)
