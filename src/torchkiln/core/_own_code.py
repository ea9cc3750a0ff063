"""Where this project's own code lies: what tells it from the user's."""

from __future__ import annotations

from pathlib import Path

SOURCES = Path(__file__).resolve().parents[2]
OWN_PACKAGES = ("torchkiln", "poptorch", "poptorch_geometric")
OWN_FOLDERS = tuple(str(SOURCES / name) for name in OWN_PACKAGES)
