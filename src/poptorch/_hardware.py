"""Questions about the original's hardware, answered for a machine without it."""

from __future__ import annotations

from poptorch._option_store import require
from torchkiln.core import PRETEND_VARIABLE, pretends_hardware

_PRETENDED_VERSION = 2


def ipuHardwareIsAvailable(num_ipus: int = 1) -> bool:
    """Return False: models run on the devices that torch has; `TORCHKILN_PRETEND_IPU=1`: True."""
    require(isinstance(num_ipus, int), "Unexpected type for num_ipus", num_ipus, int)
    return pretends_hardware()


def ipuHardwareVersion() -> int:
    """Raise: there is no such hardware; `TORCHKILN_PRETEND_IPU=1`: return 2.

    Raises:
        AssertionError: unless hardware is pretended.
    """
    if pretends_hardware():
        return _PRETENDED_VERSION
    raise AssertionError(
        "No IPU hardware is available; ask ipuHardwareIsAvailable() before its version, or set "
        f"{PRETEND_VARIABLE}=1 for a program that insists on it"
    )
