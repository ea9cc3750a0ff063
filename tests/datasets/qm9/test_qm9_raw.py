import numpy as np

from torchkiln.datasets import TARGET_COLUMNS
from torchkiln.datasets.qm9._raw import (
    missing_indices,
    write_list_of_missing,
    write_sdf,
    write_target_table,
)


def with_gaps(molecules):
    """The first 480 molecules, some of whose numbers are missing."""
    few = molecules.first(480)
    assert few.index[-1] > 480
    return few


def test_the_list_of_missing_is_read_as_pyg_reads_it(molecules, tmp_path):
    few = with_gaps(molecules)
    write_list_of_missing(few, tmp_path / "list.txt")
    lines = (tmp_path / "list.txt").read_text().split("\n")[9:-2]
    listed = {int(line.split()[0]) for line in lines}
    assert listed == set(range(1, few.index[-1] + 1)) - set(few.index.tolist())
    assert sorted(listed) == missing_indices(few)


def test_rows_of_the_target_table_stand_at_their_numbers(molecules, tmp_path):
    few = with_gaps(molecules)
    write_target_table(few, tmp_path / "targets.csv")
    header, *rows = (tmp_path / "targets.csv").read_text().split("\n")[:-1]
    assert header == "mol_id," + ",".join(TARGET_COLUMNS)
    assert len(rows) == few.index[-1]
    values = np.array([[float(x) for x in row.split(",")[1:20]] for row in rows])
    assert np.array_equal(values[few.index - 1], few.targets)
    assert np.isnan(values[np.array(missing_indices(few)) - 1]).all()


def test_records_carry_atoms_bonds_and_charges_in_full(molecules, tmp_path):
    few = molecules.first(300)
    write_sdf(few, tmp_path / "gdb9.sdf")
    records = (tmp_path / "gdb9.sdf").read_text().split("$$$$\n")[:-1]
    assert [record.split("\n")[0] for record in records] == [
        f"gdb_{index}" for index in range(1, few.index[-1] + 1)
    ]
    # beta-alanine, a zwitterion: [NH3+]CCC([O-])=O
    lines = records[270].split("\n")
    atoms = lines[lines.index("M  V30 BEGIN ATOM") + 1 : lines.index("M  V30 END ATOM")]
    bonds = lines[lines.index("M  V30 BEGIN BOND") + 1 : lines.index("M  V30 END BOND")]
    i = few.index.tolist().index(271)
    start, end = few.offsets[i : i + 2]
    read = [[float(value) for value in line.split()[4:7]] for line in atoms]
    assert np.array_equal(np.array(read), few.pos[start:end])
    assert [line.split()[3] for line in atoms][:5] == ["N", "H", "H", "H", "C"]
    assert [line.split()[-1] for line in atoms if "CHG" in line] == ["CHG=1", "CHG=-1"]
    read_bonds = [[int(value) for value in line.split()[4:]] for line in bonds]
    ends = few.bond_ends[few.bond_offsets[i] : few.bond_offsets[i + 1]] + 1
    assert read_bonds == ends.tolist()


def test_a_missing_molecule_leaves_an_empty_record(molecules, tmp_path):
    few = with_gaps(molecules)
    write_sdf(few, tmp_path / "gdb9.sdf")
    records = (tmp_path / "gdb9.sdf").read_text().split("$$$$\n")
    absent = missing_indices(few)[0]
    assert "COUNTS 0 0 " in records[absent - 1]
    assert "COUNTS 0 0 " not in records[absent - 2]
