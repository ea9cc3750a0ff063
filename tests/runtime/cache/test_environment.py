"""An executable is never used by other code than that it was made by."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import torchkiln

SOURCE = Path(torchkiln.__file__).parents[1]
PACKAGES = ("torchkiln", "popdist", "poptorch", "poptorch_geometric")
DIGEST = "from torchkiln.runtime.cache._environment import _own_sources; print(_own_sources())"


def digest_of(source: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", DIGEST],
        capture_output=True,
        text=True,
        check=True,
        cwd=source,
        env={"PATH": "", "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"},
    )
    return done.stdout.strip()


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Path:
    """All packages, elsewhere, without what Python made of them."""
    home = tmp_path_factory.mktemp("copy")
    for package in PACKAGES:
        shutil.copytree(
            SOURCE / package, home / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    return home


@pytest.fixture(scope="module")
def untouched(copy) -> str:
    return digest_of(copy)


ROOMS = sorted(
    {
        path.parent.relative_to(SOURCE)
        for package in PACKAGES
        for path in (SOURCE / package).rglob("*.py")
    }
)


def test_a_copy_has_the_digest_of_the_original(untouched):
    assert untouched == digest_of(SOURCE)


def in_one_process(copy: Path, files: list[Path]) -> list[str]:
    """Return the digest after an edit of each file alone; one process for all, it is quicker."""
    code = (
        "import sys, pathlib\n"
        "from torchkiln.runtime.cache._environment import _own_sources\n"
        "for name in sys.argv[1:]:\n"
        "    path = pathlib.Path(name); content = path.read_bytes()\n"
        "    path.write_bytes(content + b'\\n# edited'); _own_sources.cache_clear()\n"
        "    print(_own_sources()); path.write_bytes(content)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, files)],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": "", "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"},
    )
    return done.stdout.split()


def test_an_edited_file_in_any_room_changes_it(copy, untouched):
    files = [sorted((copy / room).glob("*.py"))[-1] for room in ROOMS]
    files += [
        copy / "torchkiln/graphs/layers/_convolutions.py",
        copy / "poptorch/_mixed_precision.py",
    ]
    files += sorted((copy / "torchkiln/ops").glob("*.cpp")) + sorted(
        (copy / "torchkiln/ops").glob("*.h")
    )
    digests = in_one_process(copy, files)
    assert len(digests) == len(files) > 20
    for file, digest in zip(files, digests, strict=True):
        assert digest != untouched, f"an edit of {file.relative_to(copy)} went unnoticed"
    assert len(set(digests)) == len(set(files))


def test_every_option_is_in_the_key_or_has_a_reason_not_to_be():
    import dataclasses

    from torchkiln import Options
    from torchkiln.runtime.compile._builder import _NOT_IN_KEY

    names = {field.name for field in dataclasses.fields(Options)}
    assert set(_NOT_IN_KEY) <= names
    assert all(len(reason) > 10 for reason in _NOT_IN_KEY.values())
    assert names - set(_NOT_IN_KEY) == {
        "reduction",
        "precision",
        "recompute",
        "anchors",
    }
