"""Builds the four wheels from a copy of the sources."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from _steps import require, run

ROOT = Path(__file__).resolve().parents[1]
THIN = ("popdist", "poptorch", "poptorch_geometric")


def without_paths() -> dict[str, str]:
    """Return this environment without what would let Python find the repository."""
    return {name: text for name, text in os.environ.items() if not name.startswith("PYTHON")}


def copy_sources(folder: Path) -> Path:
    """Copy what git knows or would take: no build products, no results of runs."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    for name in filter(None, listed.split("\0")):
        source, target = ROOT / name, folder / name
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
    return folder


def build_wheel(sources: Path, wheels: Path, scratch: Path) -> Path:
    """Build one wheel, as pip does it for anybody; return its path."""
    before = set(wheels.glob("*.whl"))
    run(
        f"build {sources.name}",
        [sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", wheels, sources],
        cwd=scratch,
        env=without_paths(),
    )
    (built,) = set(wheels.glob("*.whl")) - before
    return built


def build_wheels(wheels: Path, scratch: Path) -> list[Path]:
    """Build all four into an empty folder; return their paths, torchkiln's first."""
    shutil.rmtree(wheels, ignore_errors=True)
    wheels.mkdir(parents=True)
    sources = copy_sources(scratch / "torchkiln")
    built = [build_wheel(sources, wheels, scratch)]
    built += [build_wheel(sources / "packaging" / name, wheels, scratch) for name in THIN]
    check_content(built[0], sources)
    for wheel in built[1:]:
        modules = [name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name]
        require(not modules, f"{wheel.name} should hold nothing but metadata, but has {modules}")
    return built


def check_content(wheel: Path, sources: Path) -> None:
    """Fail unless the wheel has every source file, and nothing beside torchkiln."""
    names = set(zipfile.ZipFile(wheel).namelist())
    tops = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    expected = {"torchkiln", "torchkiln_facades.pth"}
    require(tops == expected, f"the wheel has {sorted(tops)} at its top, not {sorted(expected)}")
    for path in (sources / "src").rglob("*"):
        # The rooms' READMEs are for the repository, `egg-info` is what the build itself leaves.
        if path.is_file() and path.name != "README.md" and "egg-info" not in path.parent.name:
            name = path.relative_to(sources / "src").as_posix()
            if not name.startswith("torchkiln/"):
                name = f"torchkiln/_facades/{name}"
            require(name in names, f"{name} is missing in the wheel: see package-data")
