"""Accounts and groups: who else could act as an owner or a member.

Containers run under numbers without names, and namespaces hide accounts, so each question has an
answer for what is not known.
"""

from __future__ import annotations

import grp
import os
import pwd
from pathlib import Path

_ACCOUNTS = Path("/etc/passwd")
_UID_MAP = Path("/proc/self/uid_map")
_OVERFLOW_UID = Path("/proc/sys/kernel/overflowuid")


def user_name(uid: int) -> str:
    account = _account(uid)
    return f"the user {account.pw_name}" if account else f"the user with number {uid}"


def is_private_group(gid: int) -> bool:
    """Whether nobody but this user or root is in a group (many systems give each user one).

    Accounts of a network service whose first group it is cannot be listed cheaply. So beside root's
    only a group with the user's own name, or number where neither has a name, is accepted.
    """
    uid = os.geteuid()
    account, group = _account(uid), _group(gid)
    names = {"root", account.pw_name} if account else {"root"}
    if group is not None and not set(group.gr_mem) <= names:
        return False
    if gid == 0:
        return True
    if account is None:
        return group is None and gid == uid == os.getegid()
    # Not the group of the process, which `newgrp` changes.
    own = group is not None and group.gr_name == account.pw_name and gid == account.pw_gid
    return own and not _is_first_group_of_others(gid, uid)


def is_unmapped_owner(uid: int) -> bool:
    """Whether an owner may be root, who has no number in this namespace of users."""
    try:
        firsts = [int(line.split()[0]) for line in _UID_MAP.read_text().splitlines()]
        return 0 not in firsts and uid == int(_OVERFLOW_UID.read_text())
    except (OSError, ValueError, IndexError):
        return False


def _account(uid: int) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwuid(uid)
    except KeyError:
        return None


def _group(gid: int) -> grp.struct_group | None:
    try:
        return grp.getgrgid(gid)
    except KeyError:
        return None


def _is_first_group_of_others(gid: int, uid: int) -> bool:
    """Whether a local account has this group without being listed among its members."""
    try:
        lines = _ACCOUNTS.read_text(errors="replace").splitlines()
    except OSError:
        return False
    accounts = (line.split(":") for line in lines)
    return any(
        fields[3] == str(gid) and fields[2] not in ("0", str(uid))
        for fields in accounts
        if len(fields) > 3
    )
