"""PyG's layers on static shapes: what is switched on, and replaced, while a forward is recorded."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torchkiln.core import add_capture_context


@contextlib.contextmanager
def _refuse_guessed_sizes(module: Any) -> Iterator[None]:
    """Make PyG raise where it would otherwise compute a size from data."""
    from torch_geometric.experimental import experimental_mode

    with experimental_mode("disable_dynamic_shapes"):
        yield


add_capture_context(_refuse_guessed_sizes)
