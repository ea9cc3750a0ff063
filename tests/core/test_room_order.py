"""Rooms inside `graphs/` and `datasets/` know each other one way only."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "torchkiln"

# From the lowest room to the highest: what each may import of its house, besides itself. Files in
# the house itself are rooms of their own.
BASE = {"_errors", "_spec", "_padding_seen", "_filler", "_levels"}
GRAPHS = {
    "_errors": set(),
    "_spec": set(),
    "_padding_seen": set(),
    "_filler": set(),
    "_levels": {"_errors"},
    "store": BASE,
    "sampling": BASE,
    "batches": BASE | {"store"},
    "loaders": BASE | {"store", "sampling", "batches"},
    "_containers": BASE,
    "_loss_review": BASE,
    "layers": BASE,
}
DATASETS = {
    "_array_cache": set(),
    "molecules": set(),
    "files": {"_array_cache", "molecules"},
    "qm9": {"_array_cache", "molecules", "files"},
    "water": {"_array_cache", "molecules"},
    "_sizes": {"_array_cache", "qm9"},
    "_viewer": {"files"},
    "_view": {"molecules", "files", "_viewer"},
    "fashion_mnist": set(),
    "cosmic": set(),
}
HOUSES = {"graphs": GRAPHS, "datasets": DATASETS}
# Of the tables of the architecture page: heading, house, and the rooms in the order of its rows.
TABLES = [
    (
        "## A batch, from graphs to program",
        "graphs",
        ["store", "sampling", "batches", "loaders", "_containers", "layers"],
    ),
    (
        "## Molecules, from files to a dataset",
        "datasets",
        ["_array_cache", "molecules", "files", "qm9", "water", "_sizes", "_viewer", "_view"],
    ),
]


def room_of(path: Path, house: str) -> str:
    return path.relative_to(SOURCE / house).parts[0].removesuffix(".py")


def imported_rooms(path: Path, house: str) -> set[str]:
    """Return the rooms of its house that a file imports, also inside functions."""
    prefix = f"torchkiln.{house}"
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path} has a relative import"
            names.add(node.module or "")
            if node.module == prefix:
                names.update(f"{prefix}.{alias.name}" for alias in node.names)
    inside = {name.removeprefix(f"{prefix}.") for name in names if name.startswith(f"{prefix}.")}
    # The whole house holds every room: none of them may ask for it.
    return {name.split(".")[0] for name in inside} | ({"__init__"} if prefix in names else set())


FILES = [
    (path, house)
    for house in HOUSES
    for path in sorted((SOURCE / house).rglob("*.py"))
    if room_of(path, house) != "__init__"
]


@pytest.mark.parametrize(("path", "house"), FILES, ids=lambda v: getattr(v, "name", v))
def test_a_room_imports_lower_rooms_only(path, house):
    allowed, room = HOUSES[house], room_of(path, house)
    assert room in allowed, f"add {room!r} to the table of this test and to the architecture page"
    forbidden = imported_rooms(path, house) - allowed[room] - {room}
    assert not forbidden, f"{path} imports {sorted(forbidden)} from above or beside it"


@pytest.mark.parametrize("house", HOUSES)
def test_the_order_has_no_step_back(house):
    lower: set[str] = set()
    for room, allowed in HOUSES[house].items():
        assert allowed <= lower, room
        lower.add(room)


@pytest.mark.parametrize("house", HOUSES)
def test_every_room_of_the_table_exists(house):
    existing = {
        path.name.removesuffix(".py")
        for path in (SOURCE / house).iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert set(HOUSES[house]) == existing - {"__init__"}


def rows_of(heading: str) -> list[list[str]]:
    """Return the cells of the table below a heading of the architecture page."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    section = text.split(f"{heading}\n")[1].split("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("|")]
    return rows[2:]


@pytest.mark.parametrize(("heading", "house", "rooms"), TABLES, ids=["graphs", "datasets"])
def test_the_architecture_page_shows_the_order(heading, house, rooms):
    found = []
    for _, where, *_ in rows_of(heading):
        for name in re.findall(r"`([\w/.]+)`", where):
            path = SOURCE / name if (SOURCE / name).exists() else SOURCE / house / name
            assert path.exists(), name
            if path.is_relative_to(SOURCE / house) and room_of(path, house) not in found:
                found.append(room_of(path, house))
    assert found == rooms
    order = list(HOUSES[house])
    assert sorted(rooms, key=order.index) == rooms
