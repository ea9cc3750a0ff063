"""`torchkiln data`: datasets from offline sources, written as PyG expects them."""

from __future__ import annotations

import sys
from pathlib import Path

from torchkiln.datasets import write_qm9_root


def write_qm9(root: Path, source: Path | None, limit: int | None, force: bool) -> None:
    """Write QM9 below `root`, telling what happens on stderr and the folder on stdout."""

    def say(line: str) -> None:
        sys.stderr.write(f"{line}\n")

    written = write_qm9_root(root, source=source, limit=limit, force=force, say=say)
    sys.stdout.write(f"{written}\n")
