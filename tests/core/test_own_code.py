"""Where the project's own code lies."""

from pathlib import Path

from torchkiln.core._own_code import OWN_FOLDERS, OWN_PACKAGES, SOURCES, own_folders


def test_the_folders_are_those_of_the_packages():
    assert [Path(folder).name for folder in OWN_FOLDERS] == list(OWN_PACKAGES)
    for folder in OWN_FOLDERS:
        assert Path(folder, "__init__.py").exists()
        assert Path(folder).parent == SOURCES


def test_in_a_wheel_a_poptorch_beside_torchkiln_is_somebody_elses(tmp_path):
    (tmp_path / "torchkiln" / "_facades").mkdir(parents=True)
    (tmp_path / "poptorch").mkdir()
    assert own_folders(tmp_path) == (str(tmp_path / "torchkiln"),)
