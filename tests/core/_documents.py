"""Python and shell blocks of the README and of docs/, and how they are run."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]


def blocks_of(page: Path, language: str = "python") -> list[str]:
    """Return what stands between the fences of a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), flags=re.DOTALL | re.M)


def run_page(page: Path) -> dict:
    """Run all Python blocks of a page, one after the other, with no name but their own.

    Returns the names that they defined.
    """
    scope: dict = {"__name__": "__main__"}
    for block in blocks_of(page):
        exec(compile(block, str(page), "exec"), scope)
    return scope
