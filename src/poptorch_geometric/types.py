"""PyG's objects as arguments and results of models."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor

from poptorch import ICustomArgParser
from torchkiln.graphs import _containers

__all__ = ["PyGArgsParser", "registerCustomArgParsers"]


class PyGArgsParser(ICustomArgParser):
    """Takes tensors out of `Data`, `HeteroData` and batches, and makes such objects of others."""

    def __init__(self) -> None:
        self._container = _containers.GraphContainer()

    def yieldTensors(self, struct: Any) -> Iterable[Tensor]:
        """Yield the tensors of a PyG object, always in the same order.

        Raises:
            ValueError: for any other object.
        """
        yield from self._container.tensors(struct)

    def reconstruct(self, original_structure: Any, tensor_iterator: Iterator[Tensor]) -> Any:
        """Return an object like `original_structure` that holds the next tensors.

        Raises:
            ValueError: for any other object.
        """
        return self._container.rebuild(original_structure, tensor_iterator)


def registerCustomArgParsers() -> None:
    """Let models take and return PyG's objects; importing the package has done so."""
    _containers.register()
