"""Targets are transformed and restored without a loss that could be seen."""

import json

import numpy as np
import pytest
from _random_molecules import random_molecules

from torchkiln.core import OptionsError, StoreError
from torchkiln.datasets import QM9_TARGETS, Molecules, TargetTransform, element_baseline
from torchkiln.datasets.molecules._published_targets import ATOM_REFERENCES_EV
from torchkiln.datasets.qm9._molecules import to_molecules

# Of a value of 10,000 eV this is a hundredth of a micro-electronvolt.
RELATIVE = 1e-12
WAYS = [
    {"references": references, "per_atom": per_atom, "standardize": standardize}
    for references in ("none", "atoms", "fitted")
    for per_atom in (False, True)
    for standardize in (False, True)
]


@pytest.fixture(scope="module")
def real(molecules):
    return to_molecules(molecules, "tables")


def fit(molecules, target, **ways):
    return TargetTransform.fit(molecules, target, np.arange(0, len(molecules), 2), **ways)


@pytest.mark.parametrize("ways", WAYS, ids=lambda ways: "-".join(map(str, ways.values())))
def test_all_targets_come_back(real, ways):
    for target in QM9_TARGETS:
        if ways["references"] == "atoms" and target not in ATOM_REFERENCES_EV:
            continue
        transform = fit(real, target, **ways)
        values = real.targets[target]
        y = transform.apply(values, real.z, real.offsets)
        assert np.isfinite(y).all()
        restored = transform.restore(y, real.z, real.offsets)
        np.testing.assert_allclose(restored, values, rtol=0, atol=RELATIVE * np.abs(values).max())


def test_training_molecules_are_standardised_and_no_others_looked_at(real):
    train = np.arange(0, len(real), 2)
    transform = TargetTransform.fit(real, "U0", train, references="fitted", standardize=True)
    some = real.take(train)
    y = transform.apply(some.targets["U0"], some.z, some.offsets)
    assert abs(y.mean()) < 1e-9
    assert abs(y.std() - 1) < 1e-9
    changed = real.targets["U0"].copy()
    changed[1::2] = 1e6
    assert (
        TargetTransform.fit(
            real.with_targets({"U0": changed}, {"U0": "eV"}),
            "U0",
            train,
            references="fitted",
            standardize=True,
        )
        == transform
    )


def test_atoms_leave_the_formation_energy_per_atom(real):
    transform = fit(real, "U0", references="atoms", per_atom=True)
    y = transform.apply(real.targets["U0"], real.z, real.offsets)
    # U0_atom was made with factors of other digits.
    np.testing.assert_allclose(y * real.num_atoms, real.targets["U0_atom"], rtol=2e-7)
    assert transform.unit == "eV"


def test_fitted_references_explain_a_sum_over_atoms():
    molecules = random_molecules(60)
    energies = {1: -0.5, 6: -38.0, 7: -54.5, 8: -75.0}
    table = np.zeros(9)
    table[list(energies)] = list(energies.values())
    totals = np.add.reduceat(table[molecules.z], molecules.offsets[:-1])
    transform = fit(molecules.with_targets({"energy": totals}), "energy", references="fitted")
    assert transform.references == pytest.approx(energies)
    assert np.abs(transform.apply(totals, molecules.z, molecules.offsets)).max() < 1e-9


def test_an_element_that_training_does_not_have_counts_nothing():
    molecules = Molecules(
        [0, 1, 2], [1, 9], np.zeros((2, 3)), targets={"energy": [-0.5, -99.0]}, source="atoms"
    )
    transform = TargetTransform.fit(molecules, "energy", [0], references="fitted")
    assert transform.references == pytest.approx({1: -0.5, 9: 0.0})


def test_a_single_value_is_not_divided_by_zero():
    molecules = random_molecules(1)
    transform = TargetTransform.fit(molecules, "energy", [0], standardize=True)
    assert transform.std == 1.0
    assert transform.apply(molecules.targets["energy"], molecules.z, molecules.offsets)[0] == 0.0


def test_a_transform_survives_json(real):
    transform = fit(real, "G", references="fitted", per_atom=True, standardize=True)
    again = TargetTransform.from_dict(json.loads(json.dumps(transform.to_dict())))
    assert again == transform
    assert str(again) == "G (eV), less references of 5 elements, per atom, standardised"


@pytest.mark.parametrize(
    ("given", "name"),
    [("U0", "U0"), ("u0", "U0"), ("u298", "U"), ("7", "U0"), ("GAP", "gap"), ("cv", "Cv")],
)
def test_targets_are_found_by_all_their_names(real, given, name):
    transform = fit(real, given)
    assert (transform.target, transform.unit) == (name, QM9_TARGETS[name][1])


def test_a_unit_may_be_named():
    molecules = random_molecules()
    assert fit(molecules, "energy").unit == ""
    assert fit(molecules, "ENERGY", unit="kcal/mol").unit == "kcal/mol"


def test_mistakes_name_the_remedy(real):
    with pytest.raises(OptionsError, match="no target 'energy'; choose from mu, alpha"):
        fit(real, "energy")
    with pytest.raises(OptionsError, match="they have no targets at all"):
        fit(Molecules([0, 1], [1], np.zeros((1, 3))), "U0")
    with pytest.raises(OptionsError, match="'gap' has no energies of atoms; U0, U, H, G of QM9"):
        fit(real, "gap", references="atoms")
    with pytest.raises(OptionsError, match="'fitted'; got 'atom'; did you mean 'atoms'"):
        fit(real, "U0", references="atom")
    with pytest.raises(OptionsError, match="std a positive one"):
        TargetTransform("U0", std=0.0)


def test_an_element_without_reference_is_named(real):
    transform = fit(real, "U0", references="atoms")
    with pytest.raises(StoreError, match=r"element 14 \(known are 1, 6, 7, 8, 9\)"):
        transform.apply([1.0], [14], [0, 1])


def test_no_molecules_are_transformed_into_none(real):
    transform = fit(real, "U0", references="atoms", per_atom=True)
    assert transform.restore([], [], [0]).shape == (0,)


def test_the_baseline_knows_nothing_but_the_formula(real):
    train, rest = np.arange(0, len(real), 2), np.arange(1, len(real), 2)
    error = element_baseline(real, "U0", train, rest)
    everything = np.abs(real.targets["U0"][rest] - real.targets["U0"][train].mean()).mean()
    assert 0.01 < error < everything / 100
    linear = real.with_targets({"U0": 3.0 + 2.0 * real.num_atoms})
    assert element_baseline(linear, "U0", train, rest) < 1e-9


def test_atom_energies_are_those_of_pyg():
    from torch_geometric.datasets.qm9 import atomrefs

    for target, references in ATOM_REFERENCES_EV.items():
        # PyG's have another last digit of the hartree.
        assert list(references.values()) == pytest.approx(
            atomrefs[QM9_TARGETS[target][0]], rel=1e-7
        )


def test_targets_are_those_of_pyg_in_more_digits(molecules, real):
    assert list(real.targets) == list(QM9_TARGETS)
    y = molecules.y
    for target, (column, _) in QM9_TARGETS.items():
        np.testing.assert_allclose(real.targets[target], y[:, column], rtol=3e-7)
    assert real.targets["U0"].dtype == np.float64


def test_of_names_that_differ_in_case_the_exact_one_is_meant():
    molecules = random_molecules().with_targets({"gap": np.zeros(len(random_molecules()))})
    molecules = molecules.with_targets({"Gap": np.ones(len(molecules))})
    assert [fit(molecules, name).target for name in ("gap", "Gap", "GAP")] == ["gap", "Gap", "gap"]


def test_a_column_of_predictions_gives_one_value_each():
    molecules = random_molecules()
    transform = fit(molecules, "energy", references="fitted", per_atom=True, standardize=True)
    atoms = (molecules.z, molecules.offsets)
    y = transform.apply(molecules.targets["energy"], *atoms)
    np.testing.assert_array_equal(
        transform.restore(y[:, None], *atoms), transform.restore(y, *atoms)
    )
    with pytest.raises(OptionsError, match="one number each"):
        transform.restore(np.ones((len(y), 2)), *atoms)
    with pytest.raises(OptionsError, match=r"shape \[1\] for"):
        transform.restore(y[:1], *atoms)
