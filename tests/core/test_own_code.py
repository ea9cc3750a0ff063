"""Where the project's own code lies."""

from pathlib import Path

import pytest

import poptorch
from torchkiln.core._own_code import (
    OWN_FOLDERS,
    OWN_PACKAGES,
    SOURCES,
    own_folders,
    require_own_poptorch,
)


def test_the_folders_are_those_of_the_packages():
    assert [Path(folder).name for folder in OWN_FOLDERS] == list(OWN_PACKAGES)
    for folder in OWN_FOLDERS:
        assert Path(folder, "__init__.py").exists()
        assert Path(folder).parent == SOURCES


def test_in_a_wheel_a_poptorch_beside_torchkiln_is_somebody_elses(tmp_path):
    (tmp_path / "torchkiln" / "_facades").mkdir(parents=True)
    (tmp_path / "poptorch").mkdir()
    assert own_folders(tmp_path) == (str(tmp_path / "torchkiln"),)


def test_torchkilns_own_poptorch_is_accepted():
    require_own_poptorch(poptorch.__version__, poptorch.__file__, package="poptorch_geometric")


@pytest.mark.parametrize("package", ["popdist", "poptorch_geometric"])
def test_another_poptorch_is_refused_with_its_place(package):
    place = r"poptorch 3\.3\.0 in /opt/poptorch/__init__\.py is in use"
    with pytest.raises(ImportError, match=f"^{package} of Torchkiln .* {place}"):
        require_own_poptorch("3.3.0", "/opt/poptorch/__init__.py", package=package)
