"""What must work after `pip install torchkiln-*.whl`, and what must not happen to others."""

from __future__ import annotations

import csv
import math
import os
import sys
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path

from _steps import require, run
from _wheel_build import ROOT, build_wheel, without_paths

SAMPLE = "molecules.xyz"
IMPORTS = """
import importlib.metadata, pathlib, popdist.poptorch, poptorch, poptorch_geometric, torchkiln
home = pathlib.Path(torchkiln.__file__).parent / "_facades"
for package in (popdist, poptorch, poptorch_geometric):
    assert home in pathlib.Path(package.__file__).parents, package.__file__
print("imported", poptorch.__version__)
"""
VERSIONS = """
import importlib.metadata, poptorch
for name in ("popdist", "poptorch", "poptorch_geometric"):
    found = importlib.metadata.version(name)
    assert found == poptorch.__version__, (name, found, poptorch.__version__)
print("versions agree")
"""
INSTANCE = """
import popdist
popdist.init()
first = popdist.getReplicaIndexOffset()
last = first + popdist.getNumLocalReplicas() - 1
index, count = popdist.getInstanceIndex(), popdist.getNumInstances()
print(f"instance {index} of {count}, replicas {first} to {last}")
"""
WHO = "import importlib.util; print(importlib.util.find_spec('poptorch').origin)"


def new_venv(folder: Path) -> Path:
    """Make an environment with nothing but pip; return the folder of its commands."""
    scratch = folder.parent
    command = [sys.executable, "-m", "venv", folder]
    run(f"new environment {folder.name}", command, cwd=scratch, env=without_paths())
    return folder / "bin"


def bare_environment(bin_folder: Path, home: Path) -> dict[str, str]:
    """Return an environment in which only the new commands and the system's are found."""
    home.mkdir(exist_ok=True)
    kept = {name: os.environ[name] for name in ("LANG", "TMPDIR") if name in os.environ}
    return {**kept, "PATH": f"{bin_folder}:/usr/local/bin:/usr/bin:/bin", "HOME": str(home)}


def check_commands(wheels: list[Path], scratch: Path) -> None:
    """Install torchkiln alone into a clean environment, and use it as its reader would."""
    torchkiln, *thin = wheels
    commands = new_venv(scratch / "clean")
    place = scratch / "elsewhere"
    place.mkdir()
    require(ROOT not in place.resolve().parents, f"{place} lies inside the repository")
    run(
        "pip install torchkiln-*.whl[qm9]",
        [commands / "python", "-m", "pip", "install", f"{torchkiln}[qm9]"],
        cwd=place,
        env=without_paths(),
    )
    env = bare_environment(commands, scratch / "home")

    def shell(title: str, *command: str, says: str = "") -> str:
        return run(title, command, cwd=place, env=env, says=says)

    shell("torchkiln --help", "torchkiln", "--help", says="usage: torchkiln")
    shell("python -m torchkiln --help", "python", "-m", "torchkiln", "--help", says="usage:")
    shell("torchkiln data list", "torchkiln", "data", "list", says="qm9")
    shell("gc-monitor", "gc-monitor", says="gc-monitor")
    shell("gc-info -l", "gc-info", "-l", says="type: [CPU]")
    instances = ("poprun", "--num-instances=2", "--num-replicas=4", "python3", "-c", INSTANCE)
    shell("poprun, two instances", *instances, says="instance 1 of 2, replicas 2 to 3")
    shell("import the façades", "python", "-c", IMPORTS, says="imported")
    bench = ("torchkiln", "bench")
    small = ("--preset", "quick", "--limit", "2000")
    shell("torchkiln bench --preset quick --limit 2000", *bench, *small, says="report.html")
    saved = ("--checkpoint", "true", "--model_name", "mine")
    shell("bench, saved after one epoch", *bench, *small, *saved, "--num_epochs", "1")
    # All other settings are those of the checkpoint.
    more = ("--resume", "true", "--model_name", "mine", "--num_epochs", "2")
    shell("bench, resumed for a second epoch", *bench, *more, says="report.html")
    shell("torchkiln data sample", "torchkiln", "data", "sample", says=SAMPLE)
    predict = ("torchkiln", "predict", "--model_name", "mine", SAMPLE, "--output", "out.csv")
    shell("torchkiln predict", *predict)
    check_predictions(place / "out.csv")

    pip_install = [commands / "python", "-m", "pip", "install", *thin]
    run("pip install poptorch*.whl popdist*.whl", pip_install, cwd=place, env=without_paths())
    shell('importlib.metadata.version("poptorch")', "python", "-c", VERSIONS, says="agree")
    shell("import the façades", "python", "-c", IMPORTS, says="imported")
    shell("pip check", "python", "-m", "pip", "check")


def check_predictions(table: Path) -> None:
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    require(len(rows) > 5, f"{table.name} has {len(rows)} rows")
    for row in rows:
        values = [float(text) for name, text in row.items() if name.startswith("predicted")]
        require(
            len(values) == 1 and math.isfinite(values[0]), f"{table.name} has no number in {row}"
        )


def check_neighbours(torchkiln: Path, scratch: Path) -> None:
    """Somebody else's poptorch is found first, whoever came first, and survives an uninstall."""
    project = scratch / "original"
    (project / "poptorch").mkdir(parents=True)
    (project / "poptorch" / "__init__.py").write_text('"""The original\'s."""\n')
    (project / "pyproject.toml").write_text(
        textwrap.dedent(
            """
            [project]
            name = "poptorch"
            version = "3.3.0"
            [tool.setuptools]
            packages = ["poptorch"]
            """
        )
    )
    wheels = scratch / "original_wheel"
    wheels.mkdir()
    original = build_wheel(project, wheels, scratch)
    for order in ("before", "after"):
        commands = new_venv(scratch / f"original_{order}")
        wanted = commands.parent / "lib" / _python_folder() / "site-packages"
        pip = [commands / "python", "-m", "pip"]
        install = [*pip, "install", "--no-deps"]
        env = without_paths()
        found = _finder(commands, scratch, env)
        both = [original, torchkiln] if order == "before" else [torchkiln, original]
        for wheel in both:
            run(f"pip install {wheel.name}", [*install, wheel], cwd=scratch, env=env)
        found("an installed poptorch comes first", wanted / "poptorch")
        run("pip uninstall torchkiln", [*pip, "uninstall", "-y", "torchkiln"], cwd=scratch, env=env)
        found("it is whole after torchkiln has gone", wanted / "poptorch")
        run(f"pip install {torchkiln.name}", [*install, torchkiln], cwd=scratch, env=env)
        run("pip uninstall poptorch", [*pip, "uninstall", "-y", "poptorch"], cwd=scratch, env=env)
        found("without it Torchkiln's is found", wanted / "torchkiln" / "_facades" / "poptorch")


def _python_folder() -> str:
    return f"python{sys.version_info.major}.{sys.version_info.minor}"


def _finder(commands: Path, scratch: Path, env: Mapping[str, str]) -> Callable[[str, Path], None]:
    """Return a check that `poptorch` is found in a folder."""

    def found(title: str, folder: Path) -> None:
        command = [commands / "python", "-c", WHO]
        where = Path(run(title, command, cwd=scratch, env=env).strip()).parent
        require(where == folder, f"poptorch was found in {where}, not in {folder}")

    return found
