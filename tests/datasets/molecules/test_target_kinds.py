"""Targets that grow with the molecule are told from those that do not."""

import numpy as np
import pytest
from _random_molecules import random_molecules

from torchkiln.core import OptionsError
from torchkiln.datasets import make_molecule_set
from torchkiln.datasets.molecules._element_counts import count_elements
from torchkiln.datasets.molecules._published_targets import QM9_UNITS
from torchkiln.datasets.molecules._target_kinds import find_kind

RNG = np.random.default_rng(5)


def with_target(values_of, units=None, **sizes):
    """Return random molecules whose target "y" is a function of counts and atoms."""
    molecules = random_molecules(**sizes)
    counts = count_elements(molecules, molecules.elements)
    noise = RNG.normal(0, 0.1, len(molecules))
    return molecules.with_targets({"y": values_of(counts) + noise}, units)


def total(counts):
    return counts @ np.linspace(-900.0, -10.0, counts.shape[1])


def mean(counts):
    return total(counts) / counts.sum(axis=1)


def kind_of(molecules, target="y"):
    return find_kind(molecules, target, np.arange(len(molecules)))


def test_a_sum_over_atoms_is_extensive_and_a_mean_is_not():
    assert kind_of(with_target(total)) == "extensive"
    assert kind_of(with_target(mean)) == "intensive"


def test_a_constant_with_noise_does_not_grow():
    assert kind_of(with_target(lambda counts: np.full(len(counts), 4.0))) == "intensive"


def test_molecules_of_one_size_are_taken_as_sums():
    molecules = with_target(mean)
    largest = np.bincount(molecules.num_atoms).argmax()
    alike = molecules.take(np.flatnonzero(molecules.num_atoms == largest))
    assert len(alike) > 1
    assert kind_of(alike) == "extensive"


def test_only_training_molecules_are_looked_at():
    molecules = with_target(total)
    values = molecules.targets["y"].copy()
    values[len(values) // 2 :] = 1e9 * RNG.normal(size=len(values) - len(values) // 2)
    spoiled = molecules.with_targets({"y": values})
    assert find_kind(spoiled, "y", np.arange(len(values) // 2)) == "extensive"


def test_names_of_qm9_count_only_where_units_are_certain():
    molecules = with_target(total)
    own = molecules.with_targets({"gap": molecules.targets["y"]})
    assert kind_of(own, "gap") == "extensive"
    published = molecules.with_targets({"gap": molecules.targets["y"]}, {"gap": "eV"})
    assert kind_of(published, "gap") == "intensive"


@pytest.mark.parametrize(
    ("target", "units", "references", "per_atom"),
    [
        ("U0", QM9_UNITS, {1, 6, 7, 8, 9}, True),
        ("U0_atom", QM9_UNITS, set(), True),
        ("alpha", QM9_UNITS, {1, 6, 7, 8}, True),
        ("gap", QM9_UNITS, set(), False),
        # The same name in somebody's own file: nobody knows in which unit.
        ("U0", {}, {1, 6, 7, 8}, True),
        ("energy", {}, {1, 6, 7, 8}, True),
    ],
)
def test_references_and_the_form_per_atom_follow_the_kind(target, units, references, per_atom):
    molecules = with_target(total)
    known = {target: units[target]} if target in units else {}
    molecules = molecules.with_targets({target: molecules.targets["y"]}, known)
    made = make_molecule_set(
        molecules, name="m", target=target, references="auto", per_atom=None, progress=False
    )
    if len(references) < 5:
        references &= set(molecules.elements)
    assert set(made.transform.references) == references
    assert made.transform.per_atom is per_atom


def test_what_is_asked_for_wins_over_the_kind():
    molecules = with_target(total)
    made = make_molecule_set(
        molecules, name="m", target="y", references="none", per_atom=False, progress=False
    )
    assert made.kind == "extensive"
    assert (dict(made.transform.references), made.transform.per_atom) == ({}, False)


def test_a_unit_that_contradicts_the_known_one_is_refused():
    molecules = with_target(total).with_targets({"gap": np.ones(len(random_molecules()))})
    known = molecules.with_targets({"gap": molecules.targets["y"]}, {"gap": "eV"})
    with pytest.raises(OptionsError, match=r"unit is 'Ha', but 'gap' of .* is in eV"):
        make_molecule_set(known, name="m", target="gap", unit="Ha", progress=False)
    own = make_molecule_set(molecules, name="m", target="gap", unit="Ha", progress=False)
    assert own.unit == "Ha"


@pytest.mark.slow
def test_growth_tells_qm9s_targets_apart_as_its_table_does():
    """The rule for users' targets, on all of QM9, against what is known about them."""
    from torchkiln.datasets import qm9_molecules

    published = qm9_molecules(progress=False)
    nameless = published.with_targets(
        {f"own {name}": values for name, values in published.targets.items()}
    )
    for name in QM9_UNITS:
        assert kind_of(nameless, f"own {name}") == kind_of(published, name), name
