"""Sizes as earlier releases took them: straight to the loader."""

from __future__ import annotations

from typing import Any

from poptorch_geometric.fixed_size_options import FixedSizeOptions
from torchkiln.core import warn_user

_NAMES = ("num_nodes", "num_edges", "collater_args")


def take_older_keywords(kwargs: dict[str, Any], batch_size: int) -> FixedSizeOptions | None:
    """Return the options that older keywords stand for, taken out of `kwargs`; None without any."""
    given = {name: kwargs.pop(name) for name in _NAMES if name in kwargs}
    if not given:
        return None
    warn_user(
        f"{', '.join(given)}: sizes belong into fixed_size_options=FixedSizeOptions(num_nodes, "
        "num_edges, num_graphs=batch_size) now",
        DeprecationWarning,
    )
    settings = {"num_graphs": batch_size, **(given.pop("collater_args", None) or {}), **given}
    settings.pop("add_masks_to_batch", None)
    return FixedSizeOptions(**settings)
