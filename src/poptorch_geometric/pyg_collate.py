"""PyG's collater without a dataset."""

from __future__ import annotations

from torch_geometric.loader.dataloader import Collater as PyGCollater

__all__ = ["Collater"]


class Collater(PyGCollater):
    """Joins samples as PyG's loader does.

    Args:
        follow_batch: Attributes that get an assignment vector of their own.
        exclude_keys: Attributes to leave out.
    """

    def __init__(
        self, follow_batch: list[str] | None = None, exclude_keys: list[str] | None = None
    ) -> None:
        super().__init__(None, follow_batch, exclude_keys)
