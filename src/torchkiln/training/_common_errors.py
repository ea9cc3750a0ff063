"""Errors that all processes of a run end with: one of them tells the person. No torch up here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

_NAME = "_torchkiln_common"


@dataclass(frozen=True, slots=True)
class Common:
    """What a process does with an error that all processes of its run have.

    Args:
        speaks: Whether it is the one that tells the person.
        leave: Waits for the others, so that none is ended by its launcher before it has spoken.
    """

    speaks: bool
    leave: Callable[[], None]


def mark_common(error: Exception, common: Common) -> None:
    """Note that all processes of the run raise this error, or one of the same kind and text."""
    vars(error)[_NAME] = common


def common_of(error: Exception) -> Common | None:
    """Return what was noted; None: the error is this process' own."""
    common = vars(error).get(_NAME)
    return common if isinstance(common, Common) else None
