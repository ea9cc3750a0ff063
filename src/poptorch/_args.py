"""Custom input and output types, on Torchkiln's registered containers."""

from __future__ import annotations

import abc
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor

from poptorch._errors import Error
from torchkiln.data import register_container


class ICustomArgParser(abc.ABC):
    """How tensors are taken out of, and put back into, objects of one type."""

    @abc.abstractmethod
    def yieldTensors(self, struct: Any) -> Iterable[Tensor]:
        """Yield every tensor of `struct`, always in the same order."""

    @abc.abstractmethod
    def reconstruct(self, original_structure: Any, tensor_iterator: Iterator[Tensor]) -> Any:
        """Return an object like `original_structure` from the next tensors of the iterator."""


class _ParserContainer:
    """A parser under the names that Torchkiln calls."""

    def __init__(self, parser: ICustomArgParser) -> None:
        self.parser = parser

    def tensors(self, value: Any) -> Iterable[Tensor]:
        return self.parser.yieldTensors(value)

    def rebuild(self, original: Any, tensors: Iterator[Tensor]) -> Any:
        return self.parser.reconstruct(original, tensors)


def registerCustomArgParser(arg_data_type: type, arg_parser: ICustomArgParser | None) -> None:
    """Let objects of a type be passed to and returned from models; None takes that back.

    Raises:
        Error: if `arg_parser` is not an `ICustomArgParser`.
    """
    if arg_parser is None:
        register_container(arg_data_type, None)
        return
    if not isinstance(arg_parser, ICustomArgParser):
        raise Error(
            f"arg_parser must be an instance of ICustomArgParser, got {arg_parser!r}; derive from "
            "it and implement yieldTensors and reconstruct"
        )
    register_container(arg_data_type, _ParserContainer(arg_parser))


def registerGeometricCustomArgParsers() -> None:
    """Let PyTorch Geometric's objects be passed to models.

    They can be from the moment that PyG is loaded, without this call. It does not load PyG itself
    (importing poptorch calls it, and PyG takes seconds), and brings back what
    `registerCustomArgParser(kind, None)` took away.
    """
    if "torch_geometric.data" in sys.modules:
        from torchkiln.graphs._containers import register

        register()
