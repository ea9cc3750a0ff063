"""Native code is run only if nobody else could have written it."""

from __future__ import annotations

import os
import stat

import pytest

from torchkiln.core import TrustError, check_trusted, private_folder

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to other users")


@pytest.fixture
def library(tmp_path):
    """A file that only this user can write, in two folders of the same kind."""
    folder = tmp_path / "cache" / "native"
    folder.mkdir(parents=True)
    for path in (tmp_path, tmp_path / "cache", folder):
        path.chmod(0o755)
    file = folder / "code.so"
    file.touch()
    file.chmod(0o644)
    return file


def test_own_file_is_accepted(library):
    check_trusted(library)


@pytest.mark.parametrize("part", ["file", "folder", "folder above"])
def test_what_everybody_may_write_is_refused(library, part):
    culprit = {"file": library, "folder": library.parent, "folder above": library.parents[1]}[part]
    culprit.chmod(0o777)
    with pytest.raises(TrustError, match=rf"{culprit} can be written by everybody.*chmod go-w"):
        check_trusted(library)


@needs_root
@pytest.mark.parametrize("part", ["file", "folder", "folder above"])
def test_what_another_user_owns_is_refused(library, part):
    culprit = {"file": library, "folder": library.parent, "folder above": library.parents[1]}[part]
    os.chown(culprit, 12345, -1)
    with pytest.raises(TrustError, match=rf"{culprit} belongs to the user with number 12345"):
        check_trusted(library)


@needs_root
def test_what_a_group_may_write_is_refused(library):
    os.chown(library.parent, -1, 12345)
    library.parent.chmod(0o775)
    with pytest.raises(TrustError, match="can be written by its group"):
        check_trusted(library)


def test_target_of_a_link_is_looked_at(library, tmp_path):
    (tmp_path / "link").symlink_to("cache/native")
    check_trusted(tmp_path / "link" / "code.so")
    library.parents[1].chmod(0o777)
    with pytest.raises(TrustError, match=r"cache can be written by everybody"):
        check_trusted(tmp_path / "link" / "code.so")


@needs_root
def test_link_of_another_user_is_refused(library, tmp_path):
    link = tmp_path / "link.so"
    link.symlink_to(library)
    os.lchown(link, 12345, -1)
    with pytest.raises(TrustError, match=r"link\.so belongs to"):
        check_trusted(link)


def test_sticky_folder_is_accepted_because_entries_cannot_be_replaced(library):
    library.parent.chmod(0o1777)
    check_trusted(library)


def test_folder_that_the_user_names_is_accepted(library, monkeypatch):
    library.parent.chmod(0o777)
    check_trusted(library, trusted=[library.parents[1]])
    monkeypatch.setenv("TORCHKILN_TRUSTED_DIRS", f"/nowhere{os.pathsep}{library.parent}")
    check_trusted(library)


def test_private_folder_is_for_its_owner_alone(tmp_path):
    tmp_path.chmod(0o755)
    folder = private_folder(tmp_path / "a" / "b")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    folder.chmod(0o777)
    assert stat.S_IMODE(private_folder(folder).stat().st_mode) == 0o700


@needs_root
def test_private_folder_that_somebody_prepared_is_refused(tmp_path):
    tmp_path.chmod(0o755)
    (tmp_path / "prepared").mkdir()
    os.chown(tmp_path / "prepared", 12345, -1)
    with pytest.raises(TrustError, match="prepared belongs to"):
        private_folder(tmp_path / "prepared")
