"""The folders below a folder of the user's: runs, checkpoints."""

from __future__ import annotations

from pathlib import Path

from torchkiln.core import OptionsError


def folders_in(root: Path, flag: str) -> list[Path]:
    """Return the folders below `root`; none if it does not exist.

    Args:
        root: Where to look.
        flag: What the user names it with, such as "--output_dir".

    Raises:
        OptionsError: It cannot be read.
    """
    try:
        return [path for path in root.iterdir() if path.is_dir()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise OptionsError(f"{root} cannot be read ({error}); choose another {flag}") from error
