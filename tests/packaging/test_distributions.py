"""What the wheels claim about themselves is true; `make wheel` builds and tries them."""

import fnmatch
import re
import tomllib
from pathlib import Path

import pytest

import poptorch
import torchkiln

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
THIN = ("popdist", "poptorch", "poptorch_geometric")


def test_the_version_of_the_distribution_is_that_of_the_package():
    assert PROJECT["project"]["version"] == torchkiln.__version__


@pytest.mark.parametrize("name", THIN)
def test_thin_distributions_have_poptorchs_version_and_need_this_torchkiln(name):
    thin = tomllib.loads((ROOT / "packaging" / name / "pyproject.toml").read_text())
    assert thin["project"]["name"] == name
    assert thin["project"]["version"] == poptorch.__version__
    assert thin["project"]["dependencies"] == [f"torchkiln=={torchkiln.__version__}"]
    assert thin["project"]["requires-python"] == PROJECT["project"]["requires-python"]
    assert thin["tool"]["setuptools"] == {"packages": []}


def test_every_data_file_of_the_package_is_in_the_wheel():
    source = ROOT / "src" / "torchkiln"
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["torchkiln"]
    # The rooms' READMEs are for people who work on the code; the rest is written by Python itself.
    left_out = ("README.md", "*.py", "*.pyc", "*.nbi", "*.nbc")
    for path in source.rglob("*"):
        if path.is_file() and not any(fnmatch.fnmatch(path.name, name) for name in left_out):
            name = path.relative_to(source).as_posix()
            assert any(fnmatch.fnmatch(name, pattern) for pattern in patterns), name
    for pattern in patterns:
        assert list(source.glob(pattern)), f"{pattern} matches no file"


def test_the_description_has_no_link_that_leads_nowhere():
    text = (ROOT / PROJECT["project"]["readme"]).read_text()
    assert re.findall(r"\]\(([^)]+)\)", text) == []
    assert "urls" not in PROJECT["project"]


def test_the_facades_are_those_that_the_build_moves():
    packages = {path.name for path in (ROOT / "src").iterdir() if (path / "__init__.py").exists()}
    assert packages - {"torchkiln"} == set(THIN)
    assert f"FACADES = {THIN}".replace("'", '"') in (ROOT / "setup.py").read_text()
