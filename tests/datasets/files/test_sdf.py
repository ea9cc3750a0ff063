import pytest

from torchkiln.core import StoreError
from torchkiln.datasets.files._read import read_molecules

FIELDS = "> <gap>\n7.5\n\n>  25  <comment>\nsome text\n\n> <matrix>\n1\n2\n\n"
V2000 = f"""water
  program           3D

  3  2  0  0  0  0            999 V2000
    0.0000    0.0000    0.1173 O   0  0
    0.0000    0.7572   -0.4692 H   0  0
    0.0000   -0.7572   -0.4692 H   0  0
  1  2  1  0
  1  3  1  0
M  END
{FIELDS}$$$$
"""
V3000 = f"""water
  program           3D

  0  0  0     0  0            999 V3000
M  V30 BEGIN CTAB
M  V30 COUNTS 3 2 0 0 0
M  V30 BEGIN ATOM
M  V30 1 O 0.0 0.0 0.1173 0
M  V30 2 H 0.0 0.7572 -0.4692 0
M  V30 3 H 0.0 -0.7572 -0.4692 0
M  V30 END ATOM
M  V30 BEGIN BOND
M  V30 1 1 1 2
M  V30 2 1 1 3
M  V30 END BOND
M  V30 END CTAB
M  END
{FIELDS}$$$$
"""


@pytest.fixture
def read(tmp_path):
    def read(text, name="some.sdf"):
        path = tmp_path / name
        path.write_text(text, newline="")
        return read_molecules(path)

    return read


def is_water(molecules):
    return molecules.z.tolist() == [8, 1, 1] and molecules.pos.tolist() == [
        [0, 0, 0.1173],
        [0, 0.7572, -0.4692],
        [0, -0.7572, -0.4692],
    ]


@pytest.mark.parametrize("text", [V2000, V3000], ids=["V2000", "V3000"])
def test_a_record_has_atoms_name_and_numbers(read, text):
    molecules = read(text)
    assert is_water(molecules)
    assert molecules.names == ["water"]
    assert {name: values.tolist() for name, values in molecules.targets.items()} == {"gap": [7.5]}


def test_records_of_both_versions_stand_in_one_file(read):
    molecules = read(V2000 + V3000 + "\n\n")
    assert molecules.offsets.tolist() == [0, 3, 6]


@pytest.mark.parametrize(
    "text",
    [
        V2000.replace("\n", "\r\n"),
        V2000.removesuffix("$$$$\n"),
        V2000.replace("  3  2  0  0  0  0            999 V2000", "3 2 0"),
        V2000.replace("    0.0000    0.7572   -0.4692 H   0", "0 0.7572 -4.692D-1 h 0"),
        V2000.replace("    0.0000    0.7572", "0\t0.7572"),
        V3000.replace("0.1173 0", "-\nM  V30 0.1173 0"),
        V3000.replace("-0.4692", "-4.692d-1"),
    ],
    ids=["crlf", "mol", "counts", "loose columns", "tabs", "continued", "exponents"],
)
def test_harmless_differences_do_not_count(read, text):
    assert is_water(read(text))


def test_columns_that_run_together_are_cut_by_position(read):
    text = V2000.replace("    0.0000    0.7572   -0.4692 H", "-1000.5000-2000.7500-3000.2500 H")
    assert read(text).pos[1].tolist() == [-1000.5, -2000.75, -3000.25]


def test_counts_above_99_run_together(read):
    atoms = "".join(f"{x:10.4f}{0:10.4f}{0:10.4f} C   0  0\n" for x in range(120))
    bonds = "".join(f"{i:3d}{i + 1:3d}  1  0\n" for i in range(1, 105))
    molecules = read(f"chain\n  program           3D\n\n120104  0\n{atoms}{bonds}M  END\n$$$$\n")
    assert molecules.num_atoms.tolist() == [120]


def test_records_without_atoms_are_left_out_with_a_warning(read):
    empty = "gone\n\n\n  0  0  0     0  0            999 V2000\nM  END\n$$$$\n"
    with pytest.warns(UserWarning, match="1 records have no atoms"):
        assert is_water(read(empty + V2000))
    with (
        pytest.warns(UserWarning, match="have no atoms"),
        pytest.raises(StoreError, match=r"some\.sdf holds no molecules"),
    ):
        read(empty)


def cut(text, last):
    return "\n".join(text.splitlines()[:last]) + "\n"


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        (cut(V2000, 6), 6, "the record ends after 2 of 3 atoms; line 4 promises 3 atoms"),
        (cut(V2000, 8), 8, "the record ends after 1 of 2 bonds"),
        (cut(V2000, 2), 2, "the record has 2 lines"),
        (V2000.replace("  3  2", "  2  3"), 7, "bond 1 of 3 should be numbers of atoms"),
        (
            V2000.replace("  3  2", "  5  0"),
            8,
            "is no symbol of an element .line 4 promises 5 atoms",
        ),
        (V2000.replace("  3  2", "many"), 4, "numbers of atoms and bonds should stand"),
        (V2000.replace(" O ", " R# "), 5, "'R#' is no element"),
        (V2000.replace("0.1173", "   nan"), 5, "z is nan; coordinates must be finite"),
        (V2000.replace("0.1173", "0.l173"), 5, "z is '0.l173', not a number"),
        (
            V2000.replace("3D", "2D").replace("0.1173", "0.0000").replace("-0.4692", " 0.0000"),
            2,
            "is a drawing",
        ),
        (V2000 + cut(V2000, 5), 21 + 5, "the record ends after 1 of 3 atoms"),
        (cut(V3000, 9), 9, "ends without the line M  V30 END ATOM"),
        (cut(V3000, 5), 5, "ends without the line M  V30 COUNTS"),
        (V3000.replace("COUNTS 3", "COUNTS 4"), 1, "promises 4 atoms and has 3"),
        (V3000.replace("COUNTS 3", "COUNTS x"), 6, "has no number of atoms"),
        (V3000.replace("1 O 0.0", "1 O"), 8, "an atom should be number"),
        (V3000.replace("1 O", "1 [C,N]"), 8, "is no element"),
        (V3000.replace("0.1173", "inf"), 8, "z is inf; coordinates must be finite"),
    ],
)
def test_mistakes_name_file_and_line(read, text, line, reason):
    with pytest.raises(StoreError, match=rf"some\.sdf, line {line}: .*({reason})"):
        read(text)
