import io

import numpy as np
import pytest
from _clusters import energies_of, some_clusters, xyz_text

from torchkiln.core import StoreError
from torchkiln.datasets.water import _frames
from torchkiln.datasets.water._frames import read_xyz_frames


def read(text, **keywords):
    return list(read_xyz_frames(io.BytesIO(text.encode()), "W.xyz", **keywords))


@pytest.fixture(name="clusters", scope="module")
def clusters_fixture():
    pos = some_clusters(4, 25)
    return pos, energies_of(pos)


@pytest.mark.parametrize(
    "form",
    [
        {},
        {"end": "\r\n"},
        {"comment": "{energy:.8f}"},
        {"comment": "Energy = {energy:.8f}  "},
        {"comment": "a few words energy={energy:.8e}"},
    ],
)
def test_frames_are_read_as_they_were_written(clusters, form):
    pos, energies = clusters
    (frames,) = read(xyz_text(pos, energies, **form), num_molecules=4)
    assert (len(frames), frames.num_molecules) == (25, 4)
    np.testing.assert_allclose(frames.pos.reshape(pos.shape), pos, atol=1e-10)
    np.testing.assert_allclose(frames.energies, energies, atol=1e-7)
    assert frames.z[0].tolist() == [8, 1, 1] * 4


def test_pieces_of_any_size_give_the_same(clusters, monkeypatch):
    text = xyz_text(*clusters)
    (whole,) = read(text)
    for size in (7, 1000, len(text) - 1, len(text)):
        monkeypatch.setattr(_frames, "_BYTES_PER_READ", size)
        parts = read(text)
        np.testing.assert_array_equal(np.concatenate([part.pos for part in parts]), whole.pos)


def test_numbers_are_those_that_python_reads():
    numbers = [
        "1",
        "-.5",
        "+2.",
        "1e-3",
        "-1.25D+02",
        "0.000000000001234567",
        "123456789.987654321",
    ]
    lines = ["3", f"-12.5 {numbers[5]}", f"O {' '.join(numbers[:3])}"]
    lines += [f"h {' '.join(numbers[3:6])} and more", f"1\t{numbers[6]} 0 -0.0"]
    (frames,) = read("\n".join(lines))
    values = [float(number.replace("D", "e")) for number in numbers]
    assert frames.energies[0] == values[5]
    # The last has more digits than float64 holds exactly.
    assert frames.pos.reshape(-1) == pytest.approx([*values, 0.0, 0.0], rel=3e-16)


def test_sizes_may_change_where_the_name_does_not_say(clusters):
    pos, energies = clusters
    others = some_clusters(3, 2)
    text = xyz_text(pos, energies) + "\n \n" + xyz_text(others, energies_of(others))
    assert [(part.num_molecules, len(part)) for part in read(text)] == [(4, 25), (3, 2)]
    with pytest.raises(StoreError, match=r"W.xyz, line 353: expected 12 atoms, .* found '9'"):
        read(text, num_molecules=4)


DAMAGE = {
    # what is replaced in the second frame: line (from 0), by what, and what the error must say
    "count": (0, "twelve", "line 15: expected the number of atoms of the next cluster"),
    "energy": (1, "1 -45.x", "line 16: expected a comment that ends with the energy.*45.x"),
    "no energy": (1, "", "line 16: expected a comment that ends with the energy"),
    "element": (4, "Cl 0 0 0", "line 19: expected an atom, O or H.*'Cl 0 0 0'"),
    "overflow": (5, "H 1.0 ****** 2.0", r"line 20: expected an atom with three.*\*\*\*"),
    "cut": (13, "H 1.0 2.0", "line 28: expected an atom with three coordinates"),
    "not a number": (6, "H nan 0 0", "line 21: expected an atom with three coordinates"),
    "no water": (2, "H 0 0 0", "near line 15: 3 oxygens among 12 atoms"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_named_with_its_line(clusters, kind):
    pos, energies = clusters
    line, text, message = DAMAGE[kind]
    lines = xyz_text(pos[:3], energies[:3]).split("\n")
    lines[14 + line] = text
    with pytest.raises(StoreError, match=message):
        read("\n".join(lines))


@pytest.mark.parametrize("num_lines", [15, 16, 20])
def test_a_cut_file_is_noticed(clusters, num_lines):
    text = "\n".join(xyz_text(*clusters).split("\n")[:num_lines])
    with pytest.raises(StoreError, match=r"ends in the middle of the cluster .* line 15"):
        read(text)


def test_frames_that_cannot_be_water_are_refused():
    with pytest.raises(StoreError, match="line 1: 4 atoms are no water cluster"):
        read("4\n-1.0\nO 0 0 0\nH 0 0 1\nH 0 1 0\nH 1 0 0\n")


def test_an_empty_file_has_no_frames():
    assert read("") == read("\n\n") == []


@pytest.mark.parametrize("count", ["3000000000000", "3e300"])
def test_a_senseless_size_is_refused_before_there_is_room_for_it(count):
    with pytest.raises(StoreError, match=r"line 1: 3.*0 atoms are no water cluster"):
        read(f"{count}\n-1.0\nO 0 0 0\nH 0 0 1\nH 0 1 0\n")
