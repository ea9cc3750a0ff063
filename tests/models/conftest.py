"""Real molecules of QM9 with interaction graphs, for comparisons of models."""

import importlib.util

import pytest


@pytest.fixture(scope="session")
def qm9_set():
    """120 molecules with all their pairs within 10 angstrom."""
    if importlib.util.find_spec("qm9pack") is None:
        pytest.skip("needs qm9pack, the source of QM9 (pip install qm9pack)")
    from torchkiln.datasets import load_qm9

    return load_qm9(limit=120, references="fitted", standardize=True, progress=False)


@pytest.fixture(scope="session")
def one_sided_set(qm9_set):
    """The same molecules, each atom hearing its 4 nearest neighbours: not always mutual."""
    from torchkiln.datasets import make_molecule_set

    return make_molecule_set(
        qm9_set.molecules, name="QM9", target="gap", k=4, cutoff_angstrom=6.0, progress=False
    )
