"""Sizes as earlier releases took them: straight to the loader."""

from __future__ import annotations

from typing import Any

from poptorch_geometric.fixed_size_options import FixedSizeOptions
from torchkiln.core import warn_user

_NAMES = ("num_nodes", "num_edges", "collater_args")
_COLLATER_NAMES = ("add_masks_to_batch", "trim_nodes", "trim_edges")


def take_older_keywords(
    kwargs: dict[str, Any], batch_size: int
) -> tuple[FixedSizeOptions | None, dict[str, bool]]:
    """Return what older keywords stand for, taken out of `kwargs`.

    Returns:
        The sizes, None if there are none, and settings of the collater by their names there.
    """
    given = {name: kwargs.pop(name) for name in _NAMES if name in kwargs}
    if not given:
        return None, {}
    warn_user(
        f"{', '.join(given)}: sizes belong into fixed_size_options=FixedSizeOptions(num_nodes, "
        "num_edges, num_graphs=batch_size) now",
        DeprecationWarning,
    )
    settings = {**(given.pop("collater_args", None) or {}), **given}
    collater = {name: settings.pop(name) for name in _COLLATER_NAMES if name in settings}
    options = FixedSizeOptions(**{"num_graphs": batch_size, **settings}) if settings else None
    return options, collater
