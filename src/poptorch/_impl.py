"""The module of the original that programs import two functions from, although it is private."""

from __future__ import annotations

from torch import nn

from poptorch._wrapping import put_back, set_aside


def unwrapModelIfNecessary(model: nn.Module) -> None:
    """Give a module that an executor trains its own class, until it is wrapped again."""
    set_aside(model)


def rewrapModelIfNecessary(model: nn.Module) -> None:
    """Take the class of a trained module again, if it was unwrapped and is still trained."""
    put_back(model)
