"""Sockets between processes that leave nothing behind, however the processes end.

By default multiprocessing binds them to files in a folder `pymp-*` of the system's temporary
directory, one a process, which stays there if the process is killed.
"""

from __future__ import annotations

import multiprocessing.connection
import multiprocessing.process
import multiprocessing.resource_sharer
import multiprocessing.util
import os
import secrets
from typing import Any

from torchkiln.core import ScratchDirectory

# As multiprocessing calls them; it has no public way to choose a socket's place.
_connection: Any = multiprocessing.connection
_resource_sharer: Any = multiprocessing.resource_sharer
_util: Any = multiprocessing.util

# What the system allows for the path of a socket, and what multiprocessing adds to the folder.
_MAX_ADDRESS_BYTES = 103
_MAX_FILE_NAME_BYTES = len("/listener-01234567")

_folder: ScratchDirectory | None = None


def share_without_file() -> None:
    """Let this process offer its tensors to others at an address without a file.

    To be called in a worker that has just started. The address is an abstract one, which other
    users can reach too, but whoever connects must prove that it knows the key of the family.
    """
    sharer = _resource_sharer._resource_sharer
    if not _util.abstract_sockets_supported or sharer._listener is not None:
        return
    choose = _connection.arbitrary_address
    address = f"\0torchkiln-{os.getpid()}-{secrets.token_hex(8)}"
    _connection.arbitrary_address = lambda family: address
    try:
        sharer._start()
    finally:
        _connection.arbitrary_address = choose


def use_cleaned_folder() -> None:
    """Let sockets of this process that need a file have it in a folder that is always cleaned up.

    A fork server is such: it trusts whoever reaches it, so only the folder's rights protect it.
    """
    global _folder
    settings: dict[str, Any] = multiprocessing.process.current_process()._config  # type: ignore[attr-defined]
    if "tempdir" in settings:
        return
    folder = ScratchDirectory()
    if len(os.fsencode(folder.path)) + _MAX_FILE_NAME_BYTES > _MAX_ADDRESS_BYTES:
        folder.remove()  # multiprocessing's own folder has a shorter name
        return
    _folder = folder
    settings["tempdir"] = str(folder.path)
