"""How many faults to inject: few in `make test`, all in `make faults`."""

from __future__ import annotations

import os

# Read at import: the environment of single tests is cleaned of Torchkiln's variables.
WHOLE = os.environ.get("TORCHKILN_FAULTS") == "whole"


def amount(sample: int, whole: int) -> int:
    """Return how many faults to inject: a sample in `make test`, all in `make faults`."""
    return whole if WHOLE else sample
