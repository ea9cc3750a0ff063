"""Interfaces for models that mask padding before layers."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

from torch import Tensor

__all__ = ["Layer", "LayerMasker", "Masker", "NoMasker", "PreLayerMasker"]

Entries = Tensor | tuple[Tensor, ...]
# A module or function that works on nodes, edges or graphs.
Layer = Callable[..., Any]


class Masker(abc.ABC):
    """Says what padding entries of nodes, edges and graphs become."""

    @abc.abstractmethod
    def node_masker(self, entries: Entries, mask: Tensor | None = None) -> Entries:
        """Return node entries with padding masked."""

    @abc.abstractmethod
    def edge_masker(self, entries: Entries, mask: Tensor | None = None) -> Entries:
        """Return edge entries with padding masked."""

    @abc.abstractmethod
    def graph_masker(self, entries: Entries, mask: Tensor | None = None) -> Entries:
        """Return graph entries with padding masked."""


class NoMasker(Masker):
    """Leaves everything as it is."""

    def node_masker(self, entries: Entries, mask: Tensor | None = None) -> Entries:
        """Return `entries` itself."""
        return entries

    def edge_masker(self, entries: Entries, mask: Tensor | None = None) -> Entries:
        """Return `entries` itself."""
        return entries

    def graph_masker(self, entries: Entries, mask: Tensor | None = None) -> Entries:
        """Return `entries` itself."""
        return entries


class LayerMasker(abc.ABC):
    """Wraps layers so that what they work on is masked.

    Args:
        masker: What masking means.
    """

    def __init__(self, masker: Masker) -> None:
        self.masker = masker

    @abc.abstractmethod
    def node_masker(self, layer: Layer) -> Layer:
        """Return a layer on nodes that masks."""

    @abc.abstractmethod
    def edge_masker(self, layer: Layer) -> Layer:
        """Return a layer on edges that masks."""

    @abc.abstractmethod
    def graph_masker(self, layer: Layer) -> Layer:
        """Return a layer on graphs that masks."""


class PreLayerMasker(LayerMasker):
    """Masks the arguments of a layer; the wrapped layer takes `(*args, mask=None)`."""

    def node_masker(self, layer: Layer) -> Layer:
        """Return `layer` after node masking."""
        return _masked_first(layer, self.masker.node_masker)

    def edge_masker(self, layer: Layer) -> Layer:
        """Return `layer` after edge masking."""
        return _masked_first(layer, self.masker.edge_masker)

    def graph_masker(self, layer: Layer) -> Layer:
        """Return `layer` after graph masking."""
        return _masked_first(layer, self.masker.graph_masker)


def _masked_first(layer: Layer, masker: Callable[[Entries, Tensor | None], Entries]) -> Layer:
    def masked(*args: Any, mask: Tensor | None = None) -> Any:
        if len(args) == 1:
            return layer(masker(args[0], mask))
        return layer(*masker(args, mask))

    return masked
