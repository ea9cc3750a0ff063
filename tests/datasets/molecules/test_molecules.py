"""`Molecules` keep their parts together and refuse what does not fit."""

import numpy as np
import pytest
from _random_molecules import random_molecules

from torchkiln.core import OptionsError, StoreError
from torchkiln.datasets import Molecules
from torchkiln.datasets.molecules._molecules import join_molecules


def water(**changes):
    fields = {
        "offsets": [0, 3],
        "z": [8, 1, 1],
        "pos": [[0.0, 0, 0], [0, 0.76, 0.59], [0, -0.76, 0.59]],
        "names": ["water"],
        "targets": {"energy": [-76.4]},
        "source": "water.xyz",
    }
    return Molecules(**{**fields, **changes})


def test_arrays_get_the_dtypes_that_are_promised():
    made = water()
    assert (made.offsets.dtype, made.z.dtype) == (np.int64, np.uint8)
    assert (made.pos.dtype, made.targets["energy"].dtype) == (np.float64, np.float64)
    assert len(made) == 1
    assert made.num_atoms.tolist() == [3]
    assert made.elements == [1, 8]
    assert repr(made) == "Molecules(1 molecules, 3 atoms from water.xyz)"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"offsets": [0, 2]}, "offsets must run from 0 to the number of atoms, 3"),
        ({"offsets": [[0, 3]]}, "offsets must run from 0"),
        (
            {"offsets": [0, 0, 3], "names": ["nothing", "water"]},
            r"molecule 0 \(nothing\) has no at",
        ),
        ({"z": [8, 0, 1]}, "0 is not an atomic number"),
        ({"z": [8, 300, 1]}, "300 is not an atomic number"),
        ({"pos": np.zeros((3, 2))}, r"pos has shape \[3, 2\] for 3 atoms"),
        ({"pos": [[0.0, 0, 0], [0, np.nan, 0], [1, 1, 1]]}, r"atom 1 of molecule 0 \(water\)"),
        ({"names": ["a", "b"]}, "2 names for 1 molecules"),
        ({"targets": {"energy": [1.0, 2.0]}}, r"target 'energy' has shape \[2\]"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_source(changes, words):
    with pytest.raises(StoreError, match=rf"(?s){words}.*\(water.xyz\)"):
        water(**changes)


def test_taken_molecules_keep_their_atoms_names_and_targets():
    molecules = random_molecules()
    chosen = [7, 0, 7, 31]
    some = molecules.take(chosen)
    assert some.names == [molecules.names[i] for i in chosen]
    assert some.targets["energy"].tolist() == molecules.targets["energy"][chosen].tolist()
    for here, there in enumerate(chosen):
        mine = slice(some.offsets[here], some.offsets[here + 1])
        other = slice(molecules.offsets[there], molecules.offsets[there + 1])
        assert some.z[mine].tolist() == molecules.z[other].tolist()
        assert some.pos[mine].tolist() == molecules.pos[other].tolist()


def test_the_first_molecules_are_those_taken_by_number():
    molecules = random_molecules()
    first, taken = molecules.first(5), molecules.take(range(5))
    assert first.names == taken.names
    assert first.pos.tolist() == taken.pos.tolist()
    assert len(molecules.first(0)) == len(molecules.take([])) == 0


@pytest.mark.parametrize("wrong", [[40], [-1], [[0]]])
def test_molecules_that_are_not_there_are_refused(wrong):
    with pytest.raises(OptionsError, match="numbers from 0 to 39"):
        random_molecules().take(wrong)
    with pytest.raises(OptionsError, match="first 41 of 40"):
        random_molecules().first(41)


def test_joined_parts_lack_nothing():
    single = water(names=None, targets={"gap": [9.0]}, source="files/water.xyz")
    pair = water(
        offsets=[0, 1, 2],
        z=[1, 2],
        pos=np.zeros((2, 3)),
        names=None,
        targets={"energy": [1.0, 2.0]},
        source="files/atoms.sdf",
    )
    joined = join_molecules([single, water(), pair], source="files")
    assert joined.names == ["water", "water", "atoms 1", "atoms 2"]
    assert joined.z.tolist() == [8, 1, 1, 8, 1, 1, 1, 2]
    np.testing.assert_array_equal(joined.targets["gap"], [9.0, np.nan, np.nan, np.nan])
    np.testing.assert_array_equal(joined.targets["energy"], [np.nan, -76.4, 1.0, 2.0])


def test_new_targets_stand_beside_the_old_ones():
    made = water().with_targets({"gap": [9.0]})
    assert list(made.targets) == ["energy", "gap"]
    assert list(water().targets) == ["energy"]
