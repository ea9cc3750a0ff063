"""Whether this process has made a batch with filler: then unmasked statistics deserve a warning."""

from __future__ import annotations

_seen = False


def note_padding() -> None:
    """Remember that a batch with filler was made (or a loader that makes them)."""
    global _seen
    _seen = True


def padding_seen() -> bool:
    return _seen
