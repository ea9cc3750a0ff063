"""Attempts that do harm: who finds none in them would find none anywhere."""

from __future__ import annotations

import ctypes
import time
from pathlib import Path

import _in_child
import pytest
from _damage_to_files import Kept, harms_of_damage
from _in_child import harms

from torchkiln.core import StoreError


def crash() -> None:
    import faulthandler

    faulthandler.disable()  # pytest's would fill the screen
    ctypes.string_at(0)


HARMFUL = {
    "raises": (lambda: 1 / 0, "ZeroDivisionError"),
    "says so": (lambda: "other values", "other values"),
    "crashes": (crash, "SIGSEGV"),
    "hangs": (lambda: time.sleep(60), "nothing came of it"),
    "takes all memory": (lambda: str(len(bytes(1 << 34))), "MemoryError"),
}


@pytest.mark.parametrize("name", HARMFUL)
def test_an_attempt_that_does_harm_is_told_with_its_number(name, monkeypatch):
    harmful, said = HARMFUL[name]
    monkeypatch.setattr(_in_child, "_PATIENCE_SECONDS", 1)
    (told,) = harms(range(5), lambda case: harmful() if case == 3 else None)
    assert told.startswith("case 3: ")
    assert said in told


def _text(folder: Path, read) -> Kept:
    path = folder / "text"
    path.write_text("abcdefgh")
    return Kept(folder, [path], lambda: read(path))


def _unnamed(path: Path) -> bytes:
    if path.read_bytes() != b"abcdefgh":
        raise StoreError("something is wrong")
    return path.read_bytes()


@pytest.mark.parametrize(
    ("read", "said"),
    [(Path.read_bytes, "other values"), (_unnamed, "does not name the file")],
)
def test_damage_that_nobody_notices_is_told(read, said, tmp_path):
    kept = _text(tmp_path, read)
    found, number = harms_of_damage(kept, kept.files[0], 8)
    assert number == 18
    assert len(found) == number
    assert all(said in one for one in found)


def test_damage_that_is_named_or_has_no_effect_is_fine(tmp_path):
    kept = _text(tmp_path, lambda _path: "the same")
    assert harms_of_damage(kept, kept.files[0], 8)[0] == []
