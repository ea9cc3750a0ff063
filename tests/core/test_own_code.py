"""Where the project's own code lies."""

from pathlib import Path

from torchkiln.core._own_code import OWN_FOLDERS, OWN_PACKAGES, SOURCES


def test_the_folders_are_those_of_the_packages():
    assert [Path(folder).name for folder in OWN_FOLDERS] == list(OWN_PACKAGES)
    for folder in OWN_FOLDERS:
        assert Path(folder, "__init__.py").exists()
        assert Path(folder).parent == SOURCES
