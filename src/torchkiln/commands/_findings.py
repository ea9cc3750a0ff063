"""What `torchkiln doctor` finds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the diagnosis.

    Args:
        what: What was looked at.
        text: What was found.
        remedy: What to do about it; empty where nothing is wrong.
    """

    what: str
    text: str
    remedy: str = ""
