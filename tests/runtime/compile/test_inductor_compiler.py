"""Compiled headers are kept while somebody uses them."""

from __future__ import annotations

import os
import time

import pytest

from torchkiln.core import write_sealed
from torchkiln.runtime.compile import _inductor_compiler as implementation
from torchkiln.runtime.compile._inductor_compiler import KEPT_SECONDS, _intact_headers, _still_there

USED, UNUSED = ("c" + letter * 51 + ".h" for letter in "ab")


def compile_header(folder, name):
    """Do as Inductor: what is there is finished."""
    folder.mkdir(exist_ok=True)
    for suffix in ("", ".gch"):
        if not (folder / (name + suffix)).exists():
            (folder / (name + suffix)).write_text("compiled")
    return str(folder / name)


def age(folder, days):
    then = time.time() - days * 86_400
    for path in folder.iterdir():
        os.utime(path, (then, then))


@pytest.fixture
def use(tmp_path):
    return lambda name: _intact_headers(tmp_path, [lambda: compile_header(tmp_path, name)])[0]


def headers(folder):
    return sorted(path.name for path in folder.glob("c*"))


def files_of(name):
    return [name, name + ".gch", name + ".gch.json"]


def test_headers_that_nobody_used_for_a_week_are_dropped(tmp_path, use):
    use(USED)
    use(UNUSED)
    (tmp_path / "notes.h.gch").write_text("mine")
    age(tmp_path, 6)
    use(USED)  # begins a new week
    for path in tmp_path.iterdir():
        then = path.stat().st_mtime - 2 * 86_400
        os.utime(path, (then, then))
    use(USED)
    assert headers(tmp_path) == files_of(USED)
    assert (tmp_path / "notes.h.gch").exists()


def test_half_of_a_header_that_a_killed_build_left_goes_too(tmp_path, use):
    compile_header(tmp_path, UNUSED)  # without a seal
    age(tmp_path, KEPT_SECONDS / 86_400 + 1)
    use(USED)
    assert headers(tmp_path) == files_of(USED)


def test_nothing_is_dropped_where_there_are_no_locks(tmp_path, use, monkeypatch):
    use(UNUSED)
    age(tmp_path, 30)
    monkeypatch.setattr("torchkiln.core._files._lock", lambda _descriptor, _kind: False)
    use(USED)
    assert headers(tmp_path) == sorted([*files_of(USED), *files_of(UNUSED)])


def test_a_process_notices_that_its_header_was_dropped(tmp_path, use):
    path = use(USED)
    age(tmp_path, 6)
    assert _still_there(path)
    assert time.time() - (tmp_path / (USED + ".gch.json")).stat().st_mtime < 3600
    (tmp_path / (USED + ".gch")).unlink()
    assert not _still_there(path)


def test_a_header_with_a_wrong_seal_is_compiled_again(tmp_path, use):
    compiled = tmp_path / (USED + ".gch")
    use(USED)
    compiled.write_text("damaged")
    write_sealed(implementation._seal(compiled), {"sha256": "0"})
    use(USED)
    assert compiled.read_text() == "compiled"
