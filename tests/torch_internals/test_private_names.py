"""No other file of `src/` mentions a private name of torch."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
ADAPTERS = SOURCE / "torchkiln" / "torch_internals"
FILES = [path for path in sorted(SOURCE.rglob("*.py")) if ADAPTERS not in path.parents]

# Private names that are no part of torch. Those that files of src define need no entry.
OTHERS = {
    "_NamedFuncPointer": "ctypes' type of a function, for an annotation",
    "_compiler_ctx": "lightning: what a module that went through torch.compile has",
    "_config": "multiprocessing: the folder of a process",
    "_current_indent": "argparse: how far a line of help is indented",
    "_detect_anomaly": "lightning: a flag of the trainer",
    "_fields": "names of a named tuple",
    "_getframe": "sys",
    "_inc_dict": "PyG: how attributes of a batch were shifted",
    "_indices": "PyG: which graphs a dataset shows",
    "_key": "PyG: the type that a store belongs to",
    "_listener": "multiprocessing: the socket of the resource sharer",
    "_mapping": "PyG: the dictionary of a store",
    "_metis": "PyG: the partition that ClusterData asks for",
    "_option_string_actions": "argparse: flags by name",
    "_replace": "a named tuple with other values",
    "_resource_sharer": "multiprocessing",
    "_slice_dict": "PyG: where graphs of a batch begin",
    "_start": "multiprocessing: begins to serve resources",
    "_abc_impl": "abc: what Python keeps in classes",
    "_tuplegetter": "collections: the descriptor of a named tuple's field",
    "_typehint": "jsonargparse: the type of a flag",
}
# Methods that a subclass overrides, which no function can stand in for.
OVERRIDDEN = {
    ("torchkiln/models/_grid.py", "_apply"): "nn.Module: a cast computes the grid's values anew",
}
# Modules of torch whose names are public and whose content is not promised.
UNPROMISED = ("torch.fx.experimental",)


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def is_torchs(module: str) -> bool:
    return module == "torch" or module.startswith("torch.")


def mentioned_by_imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            full = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            full = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in filter(is_torchs, full):
            if any(map(is_private, name.split("."))) or name.startswith(UNPROMISED):
                yield name


def names_bound_to_torch(tree: ast.Module) -> set[str]:
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in filter(lambda alias: is_torchs(alias.name), node.names):
                names.add(alias.asname or alias.name.split(".")[0])
        elif isinstance(node, ast.ImportFrom) and is_torchs(node.module or ""):
            names.update(alias.asname or alias.name for alias in node.names)
    return names


def root_of(node: ast.expr) -> ast.expr:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node


def defined(tree: ast.Module) -> Iterator[str]:
    """Yield names that a file gives to something of its own."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                yield name


TREES = {path: ast.parse(path.read_text()) for path in FILES}
OWN = {name for tree in TREES.values() for name in defined(tree)} | {path.stem for path in FILES}


def mentioned_as_attributes(tree: ast.Module) -> Iterator[str]:
    """Yield private attributes of torch's modules, and of objects if they are not our own."""
    of_torch = names_bound_to_torch(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or not is_private(node.attr):
            continue
        root = root_of(node)
        known = node.attr in OTHERS or node.attr in OWN
        if not known or (isinstance(root, ast.Name) and root.id in of_torch):
            yield node.attr


def mentioned_in_texts(tree: ast.Module) -> Iterator[str]:
    """Yield private names that are looked up or patched by a text."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or len(node.args) < 2:
            continue
        function = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        function = node.func.id if isinstance(node.func, ast.Name) else function
        name = node.args[1]
        if function in ("getattr", "setattr", "hasattr", "delattr", "object") and isinstance(
            name, ast.Constant
        ):
            text = str(name.value)
            if is_private(text) and text not in OTHERS and text not in OWN:
                yield text


def test_there_are_files_to_check():
    assert len(FILES) > 200


def room_of(path: Path) -> str:
    """Return the package and the room that a file is in."""
    return "/".join(path.relative_to(SOURCE).parts[:2])


ROOMS = sorted({room_of(path) for path in FILES})


@pytest.mark.parametrize("room", ROOMS)
def test_private_names_of_torch_stay_in_their_room(room):
    for path in FILES:
        if room_of(path) != room:
            continue
        tree, place = TREES[path], str(path.relative_to(SOURCE))
        found = {
            *mentioned_by_imports(tree),
            *mentioned_as_attributes(tree),
            *mentioned_in_texts(tree),
        }
        found = {name for name in found if (place, name) not in OVERRIDDEN}
        assert not found, f"{place} mentions {sorted(found)}; give it a function in torch_internals"


# Names that our own classes use too, so that only the object tells whose they are.
AMBIGUOUS = {"_version", "_schema", "_workers", "_modules", "_iterator", "_buffers", "_parameters"}


def test_names_that_we_share_with_torch_are_used_on_our_own_objects_only():
    for path in FILES:
        for node in ast.walk(TREES[path]):
            if isinstance(node, ast.Attribute) and node.attr in AMBIGUOUS:
                assert isinstance(node.value, ast.Name), f"{path}: {ast.unparse(node)}"
                assert node.value.id in ("self", "cls"), f"{path}: {ast.unparse(node)}"


@pytest.mark.parametrize(
    "code",
    [
        "import torch._inductor",
        "from torch import _utils",
        "from torch.fx.experimental import proxy_tensor",
        "import torch\ntorch._C",
        "from torch import nn\nnn.Module._call_impl",
        "x._typed_storage()",
        "getattr(x, '_backward_hooks', None)",
        "from unittest import mock\nmock.patch.object(kind, '_call_impl', 1)",
    ],
)
def test_the_check_finds(code):
    tree = ast.parse(code)
    assert [
        *mentioned_by_imports(tree),
        *mentioned_as_attributes(tree),
        *mentioned_in_texts(tree),
    ]
