"""Whether programs shall believe that the hardware of the original's API is there."""

from __future__ import annotations

import os

PRETEND_VARIABLE = "TORCHKILN_PRETEND_IPU"
# In the original both ask for an emulator on the CPU, which is no hardware.
_EMULATORS = ("POPTORCH_IPU_MODEL", "POPTORCH_SMALL_IPU_MODEL")


def pretends_hardware() -> bool:
    """Return whether `TORCHKILN_PRETEND_IPU=1` is set, and no emulator is asked for.

    It is for programs that end, or take another path, when they find no hardware. Nothing runs
    differently.
    """
    return _is_on(PRETEND_VARIABLE) and not any(map(_is_on, _EMULATORS))


def _is_on(variable: str) -> bool:
    return os.environ.get(variable, "0").strip() not in ("", "0")
