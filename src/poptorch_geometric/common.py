"""PyG's batch classes under stable names, and a decorator."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec

from torch_geometric.data import Batch, Data, HeteroData

__all__ = ["DataBatch", "HeteroDataBatch", "call_once"]

P = ParamSpec("P")

# PyG makes these classes when the first batch of their kind is made.
DataBatch: type = type(Batch(_base_cls=Data))
HeteroDataBatch: type = type(Batch(_base_cls=HeteroData))


def call_once(function: Callable[P, Any]) -> Callable[P, None]:
    """Return a function that runs `function` the first time it is called, and never again."""
    called = False

    @functools.wraps(function)
    def once(*args: P.args, **kwargs: P.kwargs) -> None:
        nonlocal called
        if not called:
            called = True
            function(*args, **kwargs)

    return once
