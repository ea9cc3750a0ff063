"""Which products and convolutions a training step consists of, and how fast sgemm does the former.

Operations are read off a step that runs as its captured graph, one operator after the other: the
graph that native code is generated from.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
# Operator -> position of its two factors.
_PRODUCTS = {
    aten.mm.default: 0,
    aten.bmm.default: 0,
    aten.addmm.default: 1,
    aten.baddbmm.default: 1,
}
# The cubic through four knots.
_KNOTS = 4
# Multiply-adds a feature by operator: of each edge that carries something, and of each message.
_CONVOLUTIONS = {
    "cfconv_table": (_KNOTS, 1),  # interpolate; filter times neighbour, added to the sum
    "cfconv_table_gradient": (_KNOTS, 1),  # product of both ends; added to four knots
    "cfconv": (0, 1),
    "cfconv_edge_products": (0, 1),
}
_LEAST_REPEATS = 3


@dataclass(frozen=True, order=True)
class Product:
    """A matrix product by the form of its factors: shapes and strides."""

    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    strides: tuple[tuple[int, ...], tuple[int, ...]]

    @property
    def flop(self) -> int:
        (*batch, rows, inner), (*_, columns) = self.shapes
        return 2 * rows * inner * columns * (batch[0] if batch else 1)

    def __str__(self) -> str:
        parts = []
        for shape, stride in zip(self.shapes, self.strides, strict=True):
            turned = "'" if stride[-1] != 1 and stride[-2] == 1 else ""
            parts.append("x".join(map(str, shape)) + turned)
        return " @ ".join(parts)

    def timer(self) -> Callable[[float], float]:
        """Return a function that repeats the product for some seconds and returns those of one."""
        a, b = (
            torch.empty_strided(shape, stride).uniform_(-1, 1)
            for shape, stride in zip(self.shapes, self.strides, strict=True)
        )
        out = torch.matmul(a, b)

        def measure(seconds: float) -> float:
            repeats, passed = 0, 0.0
            start = time.perf_counter()
            while passed < seconds or repeats < _LEAST_REPEATS:
                torch.matmul(a, b, out=out)
                repeats += 1
                passed = time.perf_counter() - start
            return passed / repeats

        measure(0.0)
        return measure


@dataclass(frozen=True)
class Operations:
    """What one step does, on average over those that were recorded."""

    products: dict[Product, float]
    convolution_flop: dict[str, float]
    convolution_calls: dict[str, float]

    @property
    def product_flop(self) -> float:
        return sum(product.flop * count for product, count in self.products.items())

    @property
    def flop(self) -> float:
        return self.product_flop + sum(self.convolution_flop.values())


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.products: Counter[Product] = Counter()
        self.flop: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in _PRODUCTS:
            a, b = args[_PRODUCTS[func] :][:2]
            key = Product((tuple(a.shape), tuple(b.shape)), (tuple(a.stride()), tuple(b.stride())))
            self.products[key] += 1
        elif func.namespace == "torchkiln" and func.__name__.startswith("cfconv"):
            name = func.__name__.split(".")[0]
            self.calls[name] += 1
            self.flop[name] += _convolution_flop(name, func, args)
        return func(*args, **(kwargs or {}))


def _convolution_flop(name: str, func: Any, args: tuple[Any, ...]) -> int:
    if name not in _CONVOLUTIONS:
        raise SystemExit(f"{name} is no part of a training step that this benchmark can count")
    given = {a.name: value for a, value in zip(func._schema.arguments, args, strict=False)}
    x, ways = given["x"], given["ways"]
    num_edges = given["index"].shape[1] if ways is None else int((ways & 3).bool().sum())
    messages = num_edges if ways is None else int(((ways & 1) + (ways >> 1 & 1)).sum())
    for_edge, for_message = _CONVOLUTIONS[name]
    return 2 * x.shape[1] * (for_edge * num_edges + for_message * messages)


def record(step: Callable[[Any], object], batches: Iterable[Any]) -> Operations:
    """Return what `step`, whose program has the backend "capture", does with these batches."""
    batches = list(batches)
    step(batches[0])  # records the graph
    with _Recorder() as recorder:
        for batch in batches:
            step(batch)
    count = len(batches)
    return Operations(
        {product: number / count for product, number in recorder.products.items()},
        {name: flop / count for name, flop in recorder.flop.items()},
        {name: calls / count for name, calls in recorder.calls.items()},
    )


def layer_product(products: Iterable[Product], width: int) -> Product:
    """Return the product of a layer from `width` to `width` features with most rows."""
    square = [p for p in products if p.shapes[1] == (width, width) and len(p.shapes[0]) == 2]
    return max(square, key=lambda product: product.flop)
