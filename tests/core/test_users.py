"""Which groups hold nobody but the user."""

from __future__ import annotations

import grp
import os
import pwd

import pytest

from torchkiln.core import _users
from torchkiln.core._users import is_private_group


@pytest.fixture
def system(monkeypatch, tmp_path):
    """A function that sets who this process is and which accounts and groups there are."""

    def set_to(*, uid, egid, accounts=(), groups=()):
        lines = [f"{name}:x:{number}:{gid}::/:/bin/sh" for name, number, gid in accounts]
        (tmp_path / "passwd").write_text("\n".join(lines))
        users = {
            number: pwd.struct_passwd((name, "x", number, gid, "", "/", "/bin/sh"))
            for name, number, gid in accounts
        }
        known = {gid: grp.struct_group((name, "x", gid, members)) for name, gid, members in groups}
        monkeypatch.setattr(_users, "_ACCOUNTS", tmp_path / "passwd")
        monkeypatch.setattr(os, "geteuid", lambda: uid)
        monkeypatch.setattr(os, "getegid", lambda: egid)
        monkeypatch.setattr(pwd, "getpwuid", users.__getitem__)
        monkeypatch.setattr(grp, "getgrgid", known.__getitem__)

    return set_to


ANN = ("ann", 1000, 1000)


def test_group_of_the_same_name_is_private_also_after_newgrp(system):
    system(uid=1000, egid=50, accounts=[ANN], groups=[("ann", 1000, []), ("staff", 50, [])])
    assert is_private_group(1000)
    assert not is_private_group(50)


@pytest.mark.parametrize(
    ("accounts", "members"), [([ANN, ("bob", 1001, 1000)], []), ([ANN], ["bob"])]
)
def test_group_with_somebody_else_is_not(system, accounts, members):
    system(uid=1000, egid=1000, accounts=accounts, groups=[("ann", 1000, members)])
    assert not is_private_group(1000)


def test_numbers_without_names_as_containers_have_them(system):
    system(uid=12345, egid=12345)
    assert is_private_group(12345)
    assert not is_private_group(12346)
    system(uid=12345, egid=12345, groups=[("team", 12345, [])])
    assert not is_private_group(12345)


@pytest.mark.parametrize(("members", "private"), [([], True), (["root"], True), (["bob"], False)])
def test_group_of_root_as_openshift_gives_it(system, members, private):
    system(uid=1_000_680_000, egid=0, groups=[("root", 0, members)])
    assert is_private_group(0) is private


def test_nogroup_is_shared_by_whoever_has_no_other(system):
    accounts = [("nobody", 65534, 65534), ("_apt", 42, 65534)]
    system(uid=65534, egid=65534, accounts=accounts, groups=[("nogroup", 65534, [])])
    assert not is_private_group(65534)
