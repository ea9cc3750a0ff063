"""A sealed file says what was written, or is refused."""

from __future__ import annotations

import json

import pytest

from torchkiln.core import SealBroken, read_sealed, write_sealed

CONTENT = {
    "name": "weights",
    "aliases": {"a": "b"},
    "losses": [0.5, 1e-9, None],
    "deep": {"x": [1]},
}


def test_content_comes_back(tmp_path):
    write_sealed(tmp_path / "f.json", {**CONTENT, "betas": (1, 2), 3: "three"})
    assert read_sealed(tmp_path / "f.json") == {**CONTENT, "betas": [1, 2], "3": "three"}


def test_any_flipped_bit_gives_the_same_values_or_is_refused(tmp_path):
    path = tmp_path / "f.json"
    write_sealed(path, CONTENT)
    intact = path.read_bytes()
    refused = 0
    for position in range(len(intact)):
        for bit in range(8):
            damaged = bytearray(intact)
            damaged[position] ^= 1 << bit
            path.write_bytes(damaged)
            try:
                assert read_sealed(path) == CONTENT
            except SealBroken:
                refused += 1
    assert refused > len(intact) * 6


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "null", "[" * 100_000, '{"content": 3, "sha256": 1}']
)
def test_other_files_are_refused(tmp_path, text):
    (tmp_path / "f.json").write_text(text)
    with pytest.raises(SealBroken, match=r"f\.json"):
        read_sealed(tmp_path / "f.json")


def test_missing_file_is_told_apart(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_sealed(tmp_path / "f.json")


def test_file_stays_readable_as_json(tmp_path):
    write_sealed(tmp_path / "f.json", CONTENT)
    assert json.loads((tmp_path / "f.json").read_text())["content"] == CONTENT
