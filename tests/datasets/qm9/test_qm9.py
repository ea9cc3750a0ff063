import shutil
from pathlib import Path

import numpy as np
import pytest

from torchkiln.core import StoreError
from torchkiln.datasets import TARGET_COLUMNS, QM9Arrays, qm9_arrays
from torchkiln.datasets.qm9 import _arrays as module
from torchkiln.datasets.qm9._source import PARTS

# PyG's y of methane: dipole, alpha, HOMO, LUMO, gap, R2, ZPVE, U0, U, H, G, Cv, atomisation
# energies, A, B, C; printed with four decimals.
Y_OF_METHANE = [
    *(0.0, 13.21, -10.5499, 3.1865, 13.7363, 35.3641, 1.2177),
    *(-1101.4878, -1101.4098, -1101.3840, -1102.0229, 6.4690),
    *(-17.1722, -17.2868, -17.3897, -16.1519, 157.7118, 157.7100, 157.7070),
]
# The published atomisation energies of methane in kcal/mol.
ATOMISATION_OF_METHANE = [-395.999594594, -398.643290011, -401.014646522, -372.471772148]
# Half of the last printed decimal, and what float32 keeps of a thousand eV.
PRINTED = 1.2e-4


def test_targets_of_methane_are_the_published_ones(molecules):
    assert molecules.y[0] == pytest.approx(Y_OF_METHANE, abs=PRINTED)
    assert molecules.y.dtype == np.float32
    energies = molecules.targets[0, TARGET_COLUMNS.index("u0_atom") :]
    assert energies == pytest.approx(ATOMISATION_OF_METHANE, abs=1e-9)


def test_atomisation_energies_agree_with_pygs_references(molecules):
    from torch_geometric.datasets.qm9 import atomrefs

    y = molecules.y.astype(float)
    for total, bound in zip((7, 8, 9, 10), (12, 13, 14, 15), strict=True):
        of_element = np.zeros(10)
        of_element[[1, 6, 7, 8, 9]] = atomrefs[total]
        of_atoms = np.add.reduceat(of_element[molecules.z], molecules.offsets[:-1])
        # Five thousand eV in float32, and two factors that differ in the seventh digit.
        assert y[:, bound] == pytest.approx(y[:, total] - of_atoms, abs=2e-3)


def test_units_are_pygs():
    from torch_geometric.datasets.qm9 import conversion

    assert module._UNIT_OF_Y.tolist() == conversion.tolist()


def test_first_molecules_have_the_sizes_of_the_document(molecules):
    nodes = [int(molecules.num_atoms[i : i + 4].sum()) for i in (0, 4, 8)]
    edges = [int(2 * molecules.num_bonds[i : i + 4].sum()) for i in (0, 4, 8)]
    assert nodes == [16, 21, 26]
    assert edges == [24, 34, 44]


def test_the_first_molecules_are_a_dataset_of_their_own(molecules):
    few = molecules.first(3)
    assert len(few) == 3
    assert few.z.tolist() == [6, 1, 1, 1, 1, 7, 1, 1, 1, 8, 1, 1]
    assert few.num_bonds.tolist() == [4, 3, 2]
    assert len(few.bond_ends) == len(few.bond_orders) == 9
    assert few.y.tolist() == molecules.y[:3].tolist()


def same(one: QM9Arrays, other: QM9Arrays) -> bool:
    return all(
        np.array_equal(getattr(one, name), getattr(other, name)) for name in QM9Arrays.__slots__
    )


def test_a_second_call_reads_the_cache_only(qm9_tables, monkeypatch):
    first = qm9_arrays(qm9_tables, progress=False)
    monkeypatch.setattr(module, "build_arrays", None)
    assert same(first, qm9_arrays(qm9_tables))


def test_changed_tables_are_read_anew(qm9_tables, tmp_path):
    tables = Path(shutil.copytree(qm9_tables, tmp_path / "tables"))
    before = qm9_arrays(tables, progress=False)
    rows = (tables / PARTS[0]).read_text().splitlines(keepends=True)
    (tables / PARTS[0]).write_text("".join(rows[:-1]))
    assert len(qm9_arrays(tables, progress=False)) == len(before) - 1


def test_molecules_out_of_order_are_refused(qm9_tables, tmp_path):
    tables = Path(shutil.copytree(qm9_tables, tmp_path / "tables"))
    header, first, second, *rest = (tables / PARTS[0]).read_text().splitlines(keepends=True)
    (tables / PARTS[0]).write_text("".join([header, second, first, *rest]))
    with pytest.raises(StoreError, match="not in the order of their numbers"):
        module.build_arrays(tables)
