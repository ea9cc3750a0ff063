"""What importing `poptorch` brings: names, no hardware, and a warning about a second package."""

import subprocess
import sys
from pathlib import Path

import pytest

import poptorch
from poptorch._shadow import find_other_poptorch


def test_there_is_no_hardware():
    assert poptorch.ipuHardwareIsAvailable() is False
    assert poptorch.ipuHardwareIsAvailable(4) is False
    with pytest.raises(AssertionError, match="No IPU hardware"):
        poptorch.ipuHardwareVersion()


def make_package(directory):
    (directory / "poptorch").mkdir(parents=True)
    (directory / "poptorch" / "__init__.py").write_text("")
    return directory


def test_another_poptorch_is_found_and_our_own_is_not(tmp_path):
    own = Path(poptorch.__file__).parent
    other = make_package(tmp_path / "graphcore")
    (tmp_path / "tests" / "poptorch").mkdir(parents=True)
    assert find_other_poptorch(own, [str(own.parent), str(tmp_path / "tests")]) is None
    assert find_other_poptorch(own, [str(own.parent), str(other)]) == other / "poptorch"


def test_importing_beside_another_poptorch_warns(tmp_path):
    other = make_package(tmp_path)
    code = f"import sys; sys.path.append({str(other)!r}); import poptorch"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert "two packages are called poptorch" in result.stderr
    assert str(other) in result.stderr


def test_every_public_name_exists_and_removed_ones_do_not():
    for name in poptorch.__all__:
        assert hasattr(poptorch, name)
    for name in ("addBlock", "cast", "autocasting", "AnchorMode"):
        assert not hasattr(poptorch, name)
    assert poptorch.BlockId is str
    assert poptorch.__version__.startswith("3.4")
