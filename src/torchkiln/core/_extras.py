"""Packages that only some commands need: noticed before any work is done."""

from __future__ import annotations

import importlib.util

from torchkiln.core._errors import OptionsError


def require_package(package: str, *, wanted_for: str, extra: str, otherwise: str) -> None:
    """Make sure that an optional package is installed.

    Args:
        package: What is imported.
        wanted_for: What asked for it, as the beginning of the message.
        extra: The extra of Torchkiln that installs it.
        otherwise: What to do without it.

    Raises:
        OptionsError: It is not installed; the message has both remedies.
    """
    if importlib.util.find_spec(package) is None:
        raise OptionsError(
            f"{wanted_for} needs the package {package}, which is not installed; run "
            f"`pip install 'torchkiln[{extra}]'`, or {otherwise}"
        )
