"""Imports point downwards only, never in a circle; light parts stay light."""

from __future__ import annotations

import ast
import functools
import importlib.util
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from _lazy_imports import LAZY

SOURCE = Path(__file__).parents[2] / "src"
FACADES = ("popdist", "poptorch", "poptorch_geometric")

# What each part of torchkiln may import besides itself. A part that is missing here fails the test.
ALLOWED = {
    "core": set(),
    "packing": {"core"},
    "torch_internals": {"core"},
    "distributed": {"core", "torch_internals"},
    "graphs": {"core", "packing", "data", "distributed", "ops", "torch_internals"},
    "data": {"core", "distributed", "torch_internals"},
    "ops": {"core", "torch_internals"},
    "checkpoints": {"core", "torch_internals"},
    "runtime": {"core", "data", "distributed", "ops", "checkpoints", "torch_internals"},
    "models": {"core", "ops"},
    "drawing": {"core"},
    "monitor": {"core"},
    "datasets": {"core", "packing", "graphs", "data", "drawing", "torch_internals"},
    "profiling": {"core", "runtime", "report", "torch_internals", "ops", "data"},
}
# Applications on top: they may use everything but each other's callers.
EVERYTHING = set(ALLOWED)
ALLOWED["report"] = {"core", "drawing", "runtime"}
ALLOWED["training"] = {"core", "data", "distributed", "checkpoints", "runtime", "report"}
ALLOWED["lightning"] = {"core", "runtime"}
ALLOWED["apps"] = EVERYTHING | {"report", "training", "__init__"}
ALLOWED["commands"] = EVERYTHING | {"report", "training", "apps", "__init__"}
ALLOWED["cli"] = EVERYTHING | {"report", "training", "apps", "commands", "__init__"}
ALLOWED["__main__"] = {"cli"}

# Parts whose rooms have an order: each may import those before it. A room is a folder or a file of
# the part; those in one line of the table stand on the same step, whatever they import there.
ROOMS = {
    "runtime": (
        ("call",),
        ("optim",),
        ("passes",),
        ("recompute",),
        ("capture",),
        ("cache",),
        ("execute",),
        ("compile",),
        ("pipeline",),
        ("memory",),
        (
            "_arguments",
            "_hooks",
            "_watching",
            "_short_of_memory",
            "_synthetic",
            "_inspection",
            "_staging",
            "_looking_inside",
            "_joining",
            "_together",
            "_program",
            "_models",
            "_loading",
            "_short_of_memory",
            "__init__",
        ),
    ),
}


@dataclass(frozen=True, slots=True)
class Import:
    """One module of ours that a file imports."""

    module: str
    in_function: bool


def module_of(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


ALL_FILES = {module_of(path): path for path in sorted(SOURCE.rglob("*.py"))}
FILES = [path for path in ALL_FILES.values() if (SOURCE / "torchkiln") in path.parents]


def imported_names(node: ast.Import | ast.ImportFrom, package: str) -> set[str]:
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    module = "." * node.level + (node.module or "")
    base = importlib.util.resolve_name(module, package) if node.level else module
    return {base, *(f"{base}.{alias.name}" for alias in node.names)}


@functools.cache
def import_statements(path: Path) -> list[tuple[set[str], bool]]:
    """Return the names that each import of a file may mean, and whether a function does it."""
    package = ".".join(path.relative_to(SOURCE).parts[:-1])
    found: list[tuple[set[str], bool]] = []

    def visit(node: ast.AST, in_function: bool) -> None:
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.append((imported_names(node, package), in_function))
        inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            visit(child, in_function or inside)

    visit(ast.parse(path.read_text()), False)
    return found


def imported(path: Path) -> set[str]:
    """Return the full names of all modules that a file imports, also inside functions."""
    return {name for names, _ in import_statements(path) for name in names}


def own_imports(path: Path) -> set[Import]:
    """Return the files of ours that a file imports: for `from a import b`, `a.b` if that is one."""
    found = set()
    for names, in_function in import_statements(path):
        modules = {name for name in names if name in ALL_FILES}
        parents = {name.rpartition(".")[0] for name in modules}
        found |= {Import(name, in_function) for name in modules if name not in parents & names}
    return found


IMPORTS = {module: own_imports(path) for module, path in ALL_FILES.items()}


def part_of(path: Path) -> str:
    return path.relative_to(SOURCE / "torchkiln").parts[0].removesuffix(".py")


def test_there_are_files_to_check():
    assert len(FILES) > 20


@pytest.mark.parametrize("part", sorted({part_of(path) for path in FILES} - {"__init__"}))
def test_imports_point_downwards(part):
    assert part in ALLOWED, f"add {part!r} to the table of this test, and to the architecture page"
    known = {p.name.removesuffix(".py") for p in (SOURCE / "torchkiln").iterdir()}
    for path in FILES:
        if part_of(path) != part:
            continue
        of_ours = {name for name in imported(path) if name.startswith("torchkiln.")}
        used = {name.split(".")[1] for name in of_ours} & known
        forbidden = used - ALLOWED[part] - {part}
        assert not forbidden, f"{path} imports {sorted(forbidden)} from above or beside it"


def room_of(module: str, part: str) -> str | None:
    """Return the room of a module, or None if it is in another part."""
    below = module.removeprefix("torchkiln.").split(".")
    if below[0] != part:
        return None
    return below[1] if len(below) > 1 else "__init__"


@pytest.mark.parametrize("part", ROOMS)
def test_rooms_of_a_part_import_rooms_below_them(part):
    step_of = {room: step for step, rooms in enumerate(ROOMS[part]) for room in rooms}
    for module, imports in IMPORTS.items():
        room = room_of(module, part)
        if room is None or not module.startswith("torchkiln."):
            continue
        assert room in step_of, f"add the room {room!r} of {part} to the table of this test"
        used = {room_of(one.module, part) for one in imports} - {None}
        above = sorted(other for other in used if step_of[other] > step_of[room])
        assert not above, f"{module} imports {above} from above it"


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the groups of modules that import each other in a circle (Tarjan's algorithm)."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        number[module] = lowest[module] = len(number)
        path.append(module)
        for other in sorted(graph[module]):
            if other not in number:
                visit(other)
            if other in path:
                lowest[module] = min(lowest[module], lowest[other])
        if lowest[module] == number[module]:
            group = path[path.index(module) :]
            del path[path.index(module) :]
            if len(group) > 1:
                found.append(group)

    for module in graph:
        if module not in number:
            visit(module)
    return found


def test_circles_are_found():
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set(), "e": {"a", "d"}}
    assert circles(graph) == [["b", "c"]]


def test_no_files_import_each_other_in_a_circle():
    """Imports inside functions and for type checkers count: they hide a circle, or draw it."""
    graph = {
        module: {one.module for one in imports} - {module} for module, imports in IMPORTS.items()
    }
    assert circles(graph) == []


def test_every_import_inside_a_function_has_a_reason():
    """What is imported later than at the top is in the table of `_lazy_imports.py`, and why."""
    found = {
        (module, one.module)
        for module, imports in IMPORTS.items()
        for one in imports
        if one.in_function
    }
    listed = [
        (module, other)
        for module, reasons in LAZY.items()
        for others in reasons.values()
        for other in others.split()
    ]
    assert len(listed) == len(set(listed)), "an import is listed twice"
    assert found - set(listed) == set(), "import at the top, or list it with a reason"
    assert set(listed) - found == set(), "these are listed, but no function imports them any more"


def test_torchkiln_never_imports_the_facades():
    for path in FILES:
        assert not {name.split(".")[0] for name in imported(path)} & set(FACADES), path


@pytest.mark.parametrize("part", ["core", "packing", "monitor"])
def test_parts_without_torch(part):
    folder = SOURCE / "torchkiln" / part
    if not folder.exists():
        pytest.skip(f"torchkiln.{part} does not exist yet")
    for path in folder.rglob("*.py"):
        heavy = {name.split(".")[0] for name in imported(path)} & {"torch", "torch_geometric"}
        assert not heavy, f"{path} imports {heavy}"


def test_what_is_made_of_a_profile_needs_no_torch():
    folder = SOURCE / "torchkiln" / "profiling"
    light = [folder / "graph/_values.py", folder / "graph/_file.py", *folder.glob("views/*.py")]
    assert len(light) > 10
    for path in light:
        used = imported(path)
        assert not {name.split(".")[0] for name in used} & {"torch", "torch_geometric"}, path
        parts = {name.split(".")[1] for name in used if name.startswith("torchkiln.")}
        assert parts <= {"core", "report", "profiling"}, path


def loads_torch(statement: str) -> bool:
    code = f"import sys; {statement}; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.strip() == "True"


@pytest.mark.parametrize(
    "module",
    ["torchkiln", "torchkiln.core", "torchkiln.cli", "torchkiln.packing", "torchkiln.monitor"],
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


READMES = sorted((SOURCE / "torchkiln").glob("*/README.md"))


def test_rooms_have_a_readme():
    rooms = {path.parent.name for path in READMES}
    assert rooms == set(ALLOWED) - {"cli", "__main__"}


@pytest.mark.parametrize("path", READMES, ids=lambda path: path.parent.name)
def test_a_readme_says_what_its_room_may_import_and_names_what_is_there(path):
    room, text = path.parent, path.read_text()
    allowed = ALLOWED[room.name]
    said = re.search(r"^May import: (.*)\.$", text, re.MULTILINE)
    assert said is not None
    if allowed >= EVERYTHING:
        assert said[1] == "everything"
    else:
        assert set(said[1].split(", ")) == (allowed or {"nothing"})
    for name in re.findall(r"`([\w*]+(?:\.py|/))`", text):
        places = (room, room.parent)  # cli.py is above the commands
        assert any(list(place.glob(name.rstrip("/"))) for place in places), name
    for name in re.findall(r"\bdocs/\w+\.md", text):
        assert (SOURCE.parent / name).is_file(), name
