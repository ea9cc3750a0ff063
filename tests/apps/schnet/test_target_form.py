"""The form of the target follows from its kind; what flags say wins."""

import numpy as np
import pytest
from _tiny_files import QUICK, write_molecules

from torchkiln.apps.schnet._arguments import read_settings
from torchkiln.apps.schnet._experiment import load_dataset
from torchkiln.apps.schnet._target_form import asked_form, choose_readout
from torchkiln.datasets import Molecules, make_molecule_set
from torchkiln.datasets.molecules._published_targets import QM9_UNITS


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("", ("auto", None)),
        ("--target gap --references fitted", ("fitted", None)),
        ("--use_qm9_energy false", ("none", False)),
        ("--use_qm9_energy false --per_atom true", ("none", True)),
        ("--use_qm9_energy false --references fitted", ("fitted", False)),
        ("--use_qm9_energy false --target u298_atom", ("none", False)),
        # It is about energies of QM9.
        ("--use_qm9_energy false --target alpha", ("auto", None)),
        ("--use_qm9_energy false --factory water", ("auto", None)),
        ("--factory water --references none", ("none", None)),
    ],
)
def test_flags_say_what_is_asked_of_the_dataset(flags, expected):
    assert asked_form(read_settings(flags.split())) == expected


@pytest.fixture(scope="module")
def published():
    """A few molecules with QM9's targets in its units; energies are sums, the gap is not."""
    sizes = np.array([2, 3, 4, 5, 6, 7])
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    rng = np.random.default_rng(0)
    return Molecules(
        offsets=offsets,
        z=rng.choice([1, 6], offsets[-1]),
        pos=rng.uniform(0, 4, (offsets[-1], 3)),
        targets={"U0": -500.0 * sizes, "alpha": 9.0 * sizes, "gap": np.linspace(5, 9, 6)},
        units=QM9_UNITS,
    )


@pytest.mark.parametrize(
    ("flags", "references", "per_atom", "readout"),
    [
        ("--target U0", {1, 6, 7, 8, 9}, True, "mean"),
        ("--target alpha", {1, 6}, True, "mean"),
        ("--target gap", set(), False, "mean"),
        ("--target gap --readout add", set(), False, "add"),
        ("--target U0 --use_qm9_energy false", set(), False, "add"),
        ("--target U0 --use_qm9_energy false --per_atom true", set(), True, "mean"),
        ("--target U0 --per_atom false", {1, 6, 7, 8, 9}, False, "add"),
    ],
)
def test_what_flags_leave_open_suits_the_target(flags, references, per_atom, readout, published):
    settings = read_settings(flags.split())
    form = asked_form(settings)
    made = make_molecule_set(
        published,
        name="QM9",
        target=settings.target,
        references=form.references,
        per_atom=form.per_atom,
        splits=[4, 1, 1],
        progress=False,
    )
    assert set(made.transform.references) == references
    assert made.transform.per_atom is per_atom
    assert choose_readout(settings, made) == readout


def test_own_molecules_are_named_after_their_file_and_have_fitted_references(tmp_path):
    root = write_molecules(tmp_path)
    made = load_dataset(read_settings([*QUICK, "--root", str(root)]))
    assert made.name == "molecules.xyz"
    assert made.unit == ""
    assert set(made.transform.references) == {1, 6, 7, 8}
    assert made.transform.per_atom
    # What the elements explain is gone: some eV of thousands are left.
    assert made.transform.std < 5
    named = load_dataset(read_settings([*QUICK, "--root", str(root), "--unit", "Ha"]))
    assert named.unit == "Ha"
