"""Native code is run only if nobody else could have written it."""

from __future__ import annotations

import os
import stat

import pytest

from torchkiln.core import (
    OptionsError,
    TrustError,
    check_trusted,
    check_trusted_folder,
    make_folders,
    private_folder,
)

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
    folder.chmod(0o755)
    assert stat.S_IMODE(private_folder(folder).stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o777, 0o1777])
def test_private_folder_that_others_could_write_is_refused_for_good(tmp_path, mode):
    tmp_path.chmod(0o755)
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(mode)
    for _ in range(2):  # it was not made to look private
        with pytest.raises(TrustError, match=r"may not be yours; delete it \(rm -r .*open\)"):
            private_folder(folder)


def test_folder_in_which_others_may_put_code_is_no_place_for_code(tmp_path):
    tmp_path.chmod(0o1777)
    check_trusted(tmp_path)  # each file in it is looked at
    with pytest.raises(TrustError, match="may not be yours; use a new folder"):
        check_trusted_folder(tmp_path)


@pytest.mark.parametrize("umask", [0o000, 0o002])
def test_folders_of_our_own_are_never_refused(tmp_path, umask):
    tmp_path.chmod(0o2755)
    if os.geteuid() == 0:
        os.chown(tmp_path, -1, 12345)  # a group that is not private, which all below inherit
        tmp_path.chmod(0o2755)
    before = os.umask(umask)
    try:
        private_folder(tmp_path / "a" / "b" / "c")
        make_folders(tmp_path / "d" / "e", own=True)
    finally:
        os.umask(before)
    check_trusted(tmp_path / "d" / "e")


@needs_root
def test_private_folder_that_somebody_prepared_is_refused(tmp_path):
    tmp_path.chmod(0o755)
    (tmp_path / "prepared").mkdir()
    os.chown(tmp_path / "prepared", 12345, -1)
    with pytest.raises(TrustError, match="prepared belongs to"):
        private_folder(tmp_path / "prepared")


def test_remedy_names_the_folder_and_the_option_only_if_there_is_one(library):
    folder = library.parent
    folder.chmod(0o777)
    with pytest.raises(TrustError) as told:
        check_trusted(folder)
    assert f"TORCHKILN_TRUSTED_DIRS={folder};" in str(told.value)  # not the folder above
    assert "trusted_dirs=" not in str(told.value)
    with pytest.raises(TrustError, match=rf"or pass trusted_dirs=\('{folder}',\) to Options"):
        check_trusted(library, ())


@needs_root
def test_remedy_for_a_foreign_owner_is_not_chmod(library):
    os.chown(library, 12345, -1)
    with pytest.raises(TrustError, match="use a place where all folders are yours") as told:
        check_trusted(library)
    assert "chmod" not in str(told.value)


def test_named_folders_may_begin_at_home_but_not_at_the_working_directory(library, monkeypatch):
    library.parent.chmod(0o777)
    monkeypatch.setenv("HOME", str(library.parents[1]))
    monkeypatch.setenv("TORCHKILN_TRUSTED_DIRS", "~/native")
    check_trusted(library)
    monkeypatch.chdir(library.parents[1])
    monkeypatch.setenv("TORCHKILN_TRUSTED_DIRS", "native")
    with pytest.raises(OptionsError, match=r"names 'native'.*write whole paths"):
        check_trusted(library)


@needs_root
def test_namespace_without_root_accepts_what_lies_above_an_own_file(library, monkeypatch, tmp_path):
    """Folders of root's look like those of the user 65534 there."""
    outer = tmp_path / "cache"
    os.chown(outer, 65534, -1)
    with pytest.raises(TrustError, match="cache belongs to"):
        check_trusted(library)
    (tmp_path / "map").write_text("   12345   12345   1\n")
    monkeypatch.setattr("torchkiln.core._users._UID_MAP", tmp_path / "map")
    check_trusted(library)
    os.chown(library, 65534, -1)  # perhaps root's, perhaps not
    with pytest.raises(TrustError, match=r"code\.so belongs to"):
        check_trusted(library)
    os.chown(library, 0, -1)
    outer.chmod(0o777)
    with pytest.raises(TrustError, match="cache can be written by everybody"):
        check_trusted(library)
