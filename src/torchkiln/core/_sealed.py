"""JSON files that carry a checksum over everything they say.

    {"sha256": "...", "content": {...}}

The checksum is that of the content as `json.dumps` writes it, so whatever passes has the values
that were written.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from torchkiln.core._files import write_atomic


class SealBroken(Exception):  # noqa: N818 - a finding for the caller, who knows the remedy
    """The file cannot be read, or does not say what was written."""


def write_sealed(
    path: Path, content: dict[str, Any], indent: int | None = 1, *, own: bool = False
) -> None:
    """Replace `path` by a sealed file with `content`, which must be plain JSON values."""
    # What reading will give: keys become strings, tuples lists.
    plain = json.loads(json.dumps(content))
    sealed = {"sha256": _checksum(plain), "content": plain}
    write_atomic(path, json.dumps(sealed, indent=indent), own=own)


def read_sealed(path: Path) -> dict[str, Any]:
    """Return the content of a sealed file.

    Raises:
        SealBroken: It is damaged, or no sealed file.
        FileNotFoundError: There is none.
    """
    try:
        values = json.loads(path.read_bytes())
        content = values["content"]
        intact = isinstance(content, dict) and values["sha256"] == _checksum(content)
    except FileNotFoundError:
        raise
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise SealBroken(f"{path.name}: {type(error).__name__}: {error}") from error
    if not intact:
        raise SealBroken(f"{path.name} does not have its checksum")
    result: dict[str, Any] = content
    return result


def _checksum(content: Any) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()
