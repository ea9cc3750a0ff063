"""Higher rooms are imported when a library calls for them, and are named in one place only."""

from __future__ import annotations

import ast
import importlib.util
import re
import runpy
import sys
import types
from pathlib import Path

import pytest

from torchkiln.core import Extends, _extensions, load_extensions

SOURCE = Path(__file__).parents[2] / "src" / "torchkiln"
# What each room may import, and so may also name: to import it only when it is asked for.
ALLOWED = runpy.run_path(str(Path(__file__).with_name("test_import_rules.py")))["ALLOWED"]
MODULE_NAME = re.compile(r"torchkiln\.(\w+)(\.\w+)*")


@pytest.fixture
def waiting(monkeypatch):
    """One extension that is called for by a library of the test's own."""
    table = {"a_library": "torchkiln_test_extension"}
    monkeypatch.setitem(_extensions._waiting, Extends.CAPTURE, table)
    return table


def test_an_extension_waits_for_its_library(waiting):
    load_extensions(Extends.CAPTURE)
    assert waiting


def test_a_loaded_library_imports_its_extension_once(waiting, monkeypatch):
    imported = []
    monkeypatch.setattr("importlib.import_module", imported.append)
    monkeypatch.setitem(sys.modules, "a_library", types.ModuleType("a_library"))
    load_extensions(Extends.CAPTURE)
    load_extensions(Extends.CAPTURE)
    assert imported == ["torchkiln_test_extension"]


def test_an_extension_that_cannot_be_imported_is_never_forgotten(waiting, monkeypatch):
    monkeypatch.setitem(sys.modules, "a_library", types.ModuleType("a_library"))
    for _ in range(2):
        with pytest.raises(ModuleNotFoundError, match="torchkiln_test_extension"):
            load_extensions(Extends.CAPTURE)


def test_a_recorder_is_imported_only_if_the_environment_asks_for_one(monkeypatch):
    begun = []
    recorder = types.SimpleNamespace(begin=lambda: begun.append(1))
    monkeypatch.setattr("importlib.import_module", lambda name: recorder)
    for name in _extensions.RECORDER_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    _extensions.load_recorder()
    assert begun == []
    monkeypatch.setenv("PVTI_OPTIONS", "{}")
    _extensions.load_recorder()
    assert begun == [1]


def test_the_recorder_exists():
    assert importlib.util.find_spec(_extensions.RECORDER) is not None


def test_every_extension_exists():
    modules = [module for table in _extensions.EXTENSIONS.values() for module in table.values()]
    assert set(_extensions.EXTENSIONS) == set(Extends)
    for module in modules:
        assert importlib.util.find_spec(module) is not None, module


@pytest.mark.parametrize("room", sorted({path.parent.name for path in SOURCE.glob("*/*.py")}))
def test_no_other_file_names_a_higher_room_as_a_string(room):
    for path in sorted((SOURCE / room).rglob("*.py")):
        strings = (
            node.value
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        )
        named = {found[1] for found in map(MODULE_NAME.fullmatch, strings) if found}
        named -= {room} | ALLOWED.get(room, set())
        if path == SOURCE / "core" / "_extensions.py":
            assert named
        else:
            assert not named, f"{path} names {sorted(named)}; its place is core/_extensions.py"
