"""What `write_qm9_root` wrote to a folder, with checksums: the file `torchkiln-qm9.json` there."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torchkiln.core import (
    SealBroken,
    StoreError,
    Unreadable,
    read_json,
    read_sealed,
    sha256_file,
    write_sealed,
)

_NAME = "torchkiln-qm9.json"


def write_manifest(root: Path, facts: dict[str, Any], files: dict[str, str]) -> None:
    """Note the checksums of files by their names below `root`, and what determined them."""
    write_sealed(root / _NAME, {**facts, "files": files})


def read_manifest(root: Path) -> tuple[dict[str, Any], dict[str, str]] | None:
    """Return what `write_manifest` was given; None if there is nothing.

    Raises:
        StoreError: if it is damaged.
    """
    try:
        facts = read_json(root / _NAME)
        # Version 0.1 wrote no checksum of it, and "files" at the top.
        if not isinstance(facts, dict) or "files" not in facts:
            facts = read_sealed(root / _NAME)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, Unreadable, SealBroken) as error:
        raise _damaged(root, error) from error
    files = facts.pop("files", None)
    if not isinstance(files, dict) or not all(isinstance(sum_, str) for sum_ in files.values()):
        raise _damaged(root, "it names no files with their checksums")
    return facts, files


def require_unchanged(root: Path, names: Iterable[str]) -> None:
    """Raise if one of these files is not as it was written; others are not ours to judge.

    Raises:
        StoreError: naming the file and the remedies.
    """
    _, files = read_manifest(root) or ({}, {})
    for name in names:
        path = root / name
        if name in files and path.is_file() and sha256_file(path) != files[name]:
            raise StoreError(
                f"{path} is damaged: it is not what `torchkiln data qm9` wrote; write it anew with "
                f"`torchkiln data qm9 --root {root}`, or, if you have changed it, delete "
                f"{root / _NAME}"
            )


def _damaged(root: Path, reason: object) -> StoreError:
    return StoreError(
        f"{root / _NAME} is damaged ({reason}); write everything anew with force=True (--force)"
    )
