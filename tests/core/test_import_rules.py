"""Imports point downwards only; light parts stay light."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
FACADES = ("poptorch", "poptorch_geometric")

# What each part of torchkiln may import besides itself. A part that is missing here fails the test.
ALLOWED = {
    "core": set(),
    "packing": {"core"},
    "graphs": {"core", "packing", "data"},
    "data": {"core"},
    "ops": {"core"},
    "checkpoints": {"core"},
    "runtime": {"core", "data", "ops", "checkpoints"},
    "models": {"core", "ops"},
    "datasets": {"core", "packing", "graphs", "data"},
    "profiling": {"core"},
}
# Applications on top: they may use everything but each other's callers.
EVERYTHING = set(ALLOWED)
ALLOWED["report"] = {"core", "runtime"}
ALLOWED["training"] = {"core", "data", "checkpoints", "runtime", "report"}
ALLOWED["apps"] = EVERYTHING | {"report", "training", "__init__"}
ALLOWED["commands"] = EVERYTHING | {"report", "training", "apps", "__init__"}
ALLOWED["cli"] = EVERYTHING | {"report", "training", "apps", "commands", "__init__"}


def part_of(path: Path) -> str:
    return path.relative_to(SOURCE / "torchkiln").parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    """Return the full names of all modules that a file imports, also inside functions."""
    package = ".".join(path.relative_to(SOURCE).with_suffix("").parts[:-1])
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            base = importlib.util.resolve_name(module, package) if node.level else module
            names.add(base)
            names.update(f"{base}.{alias.name}" for alias in node.names)
    return names


FILES = sorted((SOURCE / "torchkiln").rglob("*.py"))


def test_there_are_files_to_check():
    assert len(FILES) > 20


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_point_downwards(path):
    part = part_of(path)
    if part == "__init__":
        return
    assert part in ALLOWED, f"add {part!r} to the table of this test, and to the architecture page"
    known = {p.name.removesuffix(".py") for p in (SOURCE / "torchkiln").iterdir()}
    used = {name.split(".")[1] for name in imported(path) if name.startswith("torchkiln.")} & known
    forbidden = used - ALLOWED[part] - {part}
    assert not forbidden, f"{path} imports {sorted(forbidden)} from above or beside it"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_torchkiln_never_imports_the_facades(path):
    assert not {name.split(".")[0] for name in imported(path)} & set(FACADES)


@pytest.mark.parametrize("part", ["core", "packing"])
def test_parts_without_torch(part):
    folder = SOURCE / "torchkiln" / part
    if not folder.exists():
        pytest.skip(f"torchkiln.{part} does not exist yet")
    for path in folder.rglob("*.py"):
        heavy = {name.split(".")[0] for name in imported(path)} & {"torch", "torch_geometric"}
        assert not heavy, f"{path} imports {heavy}"


def loads_torch(statement: str) -> bool:
    code = f"import sys; {statement}; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.strip() == "True"


@pytest.mark.parametrize(
    "module", ["torchkiln", "torchkiln.core", "torchkiln.cli", "torchkiln.packing"]
)
def test_light_imports_do_not_load_torch(module):
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} does not exist yet")
    assert not loads_torch(f"import {module}")


def test_every_name_of_the_top_package_exists():
    import torchkiln

    for name in torchkiln.__all__:
        assert getattr(torchkiln, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        torchkiln.nonsense  # noqa: B018 - the access is the test


def test_options_need_no_torch_even_when_used():
    assert not loads_torch("import torchkiln; torchkiln.Options(device_iterations=2).to_yaml()")
