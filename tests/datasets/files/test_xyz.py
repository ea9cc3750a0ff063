import numpy as np
import pytest

from torchkiln.core import StoreError
from torchkiln.datasets.files._read import read_molecules

WATER = "3\n{}\nO 0 0 0.1\nH 0 0.76 -0.5\nH 0 -0.76 -0.5\n"


@pytest.fixture
def read(tmp_path):
    def read(text, name="some.xyz"):
        path = tmp_path / name
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return read_molecules(path)

    return read


def test_frames_become_flat_arrays(read):
    molecules = read(WATER.format("first") + "1\nan atom\nHe 1 2 3\n")
    assert molecules.offsets.tolist() == [0, 3, 4]
    assert molecules.z.tolist() == [8, 1, 1, 2]
    assert molecules.pos[2:].tolist() == [[0, -0.76, -0.5], [1, 2, 3]]
    assert molecules.names == ["first", "an atom"]
    assert not molecules.targets


@pytest.mark.parametrize(
    "text",
    [
        WATER.format("").replace("\n", "\r\n"),
        "\n\n" + WATER.format("") + "\n  \n\n",
        WATER.format("").replace(" ", "\t").replace("O", "  O  "),
        WATER.format("").replace("0.1", "1.0D-1").replace("-0.5", "-5*^-1"),
        WATER.format("").replace("O", "8").replace("H", "1"),
        WATER.format("").replace("O", "o").replace("H", "H1"),
        WATER.format("").replace("0.1\n", "0.1 -0.83 7 extra\n"),
        "\ufeff" + WATER.format(""),
        WATER.format("").rstrip("\n"),
    ],
    ids=["crlf", "blank", "tabs", "exponents", "numbers", "labels", "columns", "bom", "no end"],
)
def test_harmless_differences_do_not_count(read, text):
    molecules = read(text)
    assert molecules.z.tolist() == [8, 1, 1]
    assert molecules.pos.tolist() == [[0, 0, 0.1], [0, 0.76, -0.5], [0, -0.76, -0.5]]


def test_bytes_that_are_no_utf8_stay_in_the_comment(read):
    molecules = read(WATER.format("length in ?").encode().replace(b"?", b"\xc5"))
    assert molecules.names == ["length in \ufffd"]


@pytest.mark.parametrize(
    "comment",
    ["-76.5", " -7.65D1 ", "energy=-76.5", 'Energy = "-76.5" config=a', "x=y energy=-76.5"],
)
def test_the_energy_comes_from_the_comment(read, comment):
    assert read(WATER.format(comment)).targets["energy"].tolist() == [-76.5]


def test_numbers_in_comments_are_targets_and_texts_are_not(read):
    comments = [
        'name="water \\"A\\"" gap=7.5 kind=3 dipole="0 0 1" label=x',
        "name=B gap=8 kind=new",
        "name=C",
    ]
    molecules = read("".join(map(WATER.format, comments)))
    assert molecules.names == ['water "A"', "B", "C"]
    assert set(molecules.targets) == {"gap"}
    np.testing.assert_array_equal(molecules.targets["gap"], [7.5, 8, np.nan])


def test_comments_of_other_programs_are_understood(read):
    molecules = read(
        WATER.format("cluster 12, energy=-76.5; gap = 7.5,") + WATER.format("i = 3, E = -1")
    )
    assert molecules.names == ["cluster 12", ""]
    assert molecules.targets["energy"][0] == -76.5
    assert molecules.targets["gap"][0] == 7.5
    assert molecules.targets["E"][1] == -1


def test_columns_are_found_by_properties(read):
    molecules = read(
        "2\nProperties=forces:R:3:id:I:1:pos:R:3:Z:I:1\n9 9 9 1 0 0 0.5 6\n9 9 9 2 0 1e0 0.5 8\n"
    )
    assert molecules.z.tolist() == [6, 8]
    assert molecules.pos.tolist() == [[0, 0, 0.5], [0, 1, 0.5]]


def test_periodic_frames_are_read_with_a_warning(read):
    lattice = 'Lattice="9 0 0 0 9 0 0 0 9" Properties=species:S:1:pos:R:3'
    with pytest.warns(UserWarning, match=r"1 of 2 frames are periodic"):
        read(WATER.format(lattice) + WATER.format(f'{lattice} pbc="F F F"'))


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        (WATER.format("")[:-15], 4, "the file ends after 2 of 3 atoms; line 1 promises 3"),
        ("3\n", 1, "the file ends before the comment"),
        ("4" + WATER.format("")[1:] + WATER.format(""), 6, "atom 4 of 4 should be an element"),
        ("2" + WATER.format("")[1:], 5, "the frame before it has more atoms"),
        (WATER.format("").replace("O", "Q"), 3, "'Q' is no element"),
        (WATER.format("").replace("-0.76", "zero"), 5, "y is 'zero', not a number"),
        (WATER.format("").replace("0.1", "nan"), 3, "z is nan; coordinates must be finite"),
        (WATER.format("").replace("0.1", "-inf"), 3, "z is -inf; coordinates must be finite"),
        (WATER.format("").replace("0 0 0.1", "0 0.1"), 3, "should be an element and three"),
        (WATER.format("") + "0\n\n", 6, "a frame of 0 atoms"),
        ("-3\n\n", 1, "a frame of -3 atoms"),
        ("9" * 30 + "\n\nH 0 0 0\n", 3, "the file ends after 1 of 99999"),
        ("O 0 0 0\n", 1, "the number of atoms should stand here"),
        (WATER.format("energy=low"), 2, "energy='low' is not a number"),
        (WATER.format("Properties=species:S:1"), 2, "has no column pos"),
        (WATER.format("Properties=species:S"), 2, "should be name:kind:columns"),
        ("2\n\nH 0 0 0\nH 0 0 0\n", 3, "the file has no 3D structure"),
    ],
)
def test_mistakes_name_file_and_line(read, text, line, reason):
    with pytest.raises(StoreError, match=rf"some\.xyz, line {line}: .*{reason}"):
        read(text)


@pytest.mark.timeout(20)  # tried at every letter, the comment would take minutes
def test_a_comment_of_one_endless_word_is_a_name(read):
    word = "x" * 400_000
    assert read(WATER.format(word)).names == [word]


def test_pairs_need_no_space_between_them(read):
    targets = read(WATER.format('a="1"b=2 c={3}d=4')).targets
    assert {key: values[0] for key, values in targets.items()} == {"a": 1, "b": 2, "c": 3, "d": 4}
