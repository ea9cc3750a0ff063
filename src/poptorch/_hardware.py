"""Questions about the original's hardware, answered for a machine without it."""

from __future__ import annotations

from poptorch._option_store import require


def ipuHardwareIsAvailable(num_ipus: int = 1) -> bool:
    """Return False: models run on the devices that torch has."""
    require(isinstance(num_ipus, int), "Unexpected type for num_ipus", num_ipus, int)
    return False


def ipuHardwareVersion() -> int:
    """Raise: there is no such hardware.

    Raises:
        AssertionError: always.
    """
    raise AssertionError(
        "No IPU hardware is available; ask ipuHardwareIsAvailable() before its version"
    )
