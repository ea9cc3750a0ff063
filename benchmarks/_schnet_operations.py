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
# A cubic spline is a sum of four coefficients.
_KNOTS = 4
# Multiply-adds a feature by operator: of each edge that carries something, and of each message.
_CONVOLUTIONS = {
    "cfconv_table": (_KNOTS, 1),  # interpolate; filter times neighbour, added to the sum
    "cfconv_table_gradient": (_KNOTS, 1),  # product of both ends; added to four knots
    "cfconv_table_backward": (2 * _KNOTS, 2),  # both of these
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
        elif func.namespace == "torchkiln":
            name = func.__name__.split(".")[0]
            given = {a.name: value for a, value in zip(func._schema.arguments, args, strict=False)}
            if name in _LAYERS:
                self.products.update(_LAYERS[name](given))
            elif name in _ROWS:
                self.flop[name] += 2 * given["weights"].shape[1] * _ROWS[name](given)
                self.calls[name] += 1
            elif name.startswith("cfconv"):
                self.flop[name] += _convolution_flop(name, given)
                self.calls[name] += 1
        return func(*args, **(kwargs or {}))


def _rows_times_layer(rows: int, layer: torch.Tensor) -> Product:
    outputs, inputs = layer.shape
    return Product(((rows, inputs), (inputs, outputs)), ((inputs, 1), (1, inputs)))


def _forward_products(given: dict[str, Any]) -> list[Product]:
    layers = [given[name] for name in ("first", "second", "third") if given[name] is not None]
    return [_rows_times_layer(given["x"].shape[0], layer) for layer in layers]


def _backward_products(given: dict[str, Any]) -> list[Product]:
    rows = given["x"].shape[0]
    products = []
    for name in ("first", "second", "third"):
        if given[name] is None or (name == "third" and given["grad_z"] is None):
            continue
        outputs, inputs = given[name].shape
        if name != "first" or given["wants_x"]:
            products.append(
                Product(((rows, outputs), (outputs, inputs)), ((outputs, 1), (inputs, 1)))
            )
        if given["wants_layers"]:
            products.append(Product(((outputs, rows), (rows, inputs)), ((1, outputs), (inputs, 1))))
    return products


# Operators that consist of products: which ones.
_LAYERS = {"softplus_mlp": _forward_products, "softplus_mlp_backward": _backward_products}
# Operators that sum rows: how many numbers they form, each from as many as there are weights.
_ROWS = {
    "refine": lambda given: given["num_rows"] * given["x"].shape[1],
    "coarsen": lambda given: given["grad"].numel(),
}


def _convolution_flop(name: str, given: dict[str, Any]) -> int:
    if name not in _CONVOLUTIONS:
        raise SystemExit(f"{name} is no part of a training step that this benchmark can count")
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
