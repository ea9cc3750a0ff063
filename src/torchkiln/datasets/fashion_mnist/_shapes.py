"""Generated pictures of ten shapes, to try programs where Fashion-MNIST is not at hand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from torchkiln.core import OptionsError
from torchkiln.datasets.fashion_mnist._images import ImageSet

_Plane = NDArray[np.float64]
_SIDE = 28
# Shapes differ in place, size, tilt and brightness, so that no single pixel tells their class.
_MAX_SHIFT, _RADII, _MAX_TILT = 3.0, (7.0, 11.0), 0.2
_BRIGHTNESS, _NOISE = (110.0, 240.0), 18.0


def _reach(u: _Plane, v: _Plane) -> _Plane:
    return np.maximum(np.abs(u), np.abs(v))


# name: which points are inside, in coordinates where the shape reaches from about -1 to 1.
_SHAPES: dict[str, Callable[[_Plane, _Plane], NDArray[np.bool_]]] = {
    "disc": lambda u, v: u**2 + v**2 < 1,
    "ring": lambda u, v: np.abs(np.hypot(u, v) - 0.8) < 0.2,
    "square": lambda u, v: _reach(u, v) < 0.85,
    "frame": lambda u, v: np.abs(_reach(u, v) - 0.7) < 0.17,
    "diamond": lambda u, v: np.abs(u) + np.abs(v) < 1.1,
    "triangle": lambda u, v: (np.abs(v) < 0.9) & (np.abs(u) < (v + 0.9) / 1.8),
    "plus": lambda u, v: (_reach(u, v) < 1) & (np.minimum(np.abs(u), np.abs(v)) < 0.25),
    "saltire": lambda u, v: (_reach(u, v) < 0.9) & (np.abs(np.abs(u) - np.abs(v)) < 0.3),
    "rows": lambda u, v: (_reach(u, v) < 0.9) & (np.cos(3 * np.pi * v) > 0),
    "columns": lambda u, v: (_reach(u, v) < 0.9) & (np.cos(3 * np.pi * u) > 0),
}


def generate_shapes(num_images: int, *, seed: int = 0) -> ImageSet:
    """Return images of the size of Fashion-MNIST's, with ten shapes instead of clothing.

    A function of the arguments. Every ten images in a row hold every shape once, in random order.

    Args:
        num_images: How many, at least one.
        seed: Chooses other images; take another one for testing than for training.
    """
    if num_images < 1:
        raise OptionsError(f"num_images must be at least 1, got {num_images}")
    random = np.random.default_rng(seed)
    blocks = np.tile(np.arange(len(_SHAPES), dtype=np.uint8), (-(-num_images // len(_SHAPES)), 1))
    labels = random.permuted(blocks, axis=1).reshape(-1)[:num_images]
    pixels = np.empty((num_images, _SIDE, _SIDE), np.uint8)
    draw = list(_SHAPES.values())
    for image, label in zip(pixels, labels, strict=True):
        image[:] = _draw(draw[label], random)
    return ImageSet(pixels, labels, tuple(_SHAPES))


def _draw(
    is_inside: Callable[[_Plane, _Plane], NDArray[np.bool_]], random: np.random.Generator
) -> _Plane:
    middle = (_SIDE - 1) / 2 + random.uniform(-_MAX_SHIFT, _MAX_SHIFT, size=2)
    y, x = np.mgrid[:_SIDE, :_SIDE] - middle[:, None, None]
    radius, tilt = random.uniform(*_RADII), random.uniform(-_MAX_TILT, _MAX_TILT)
    u = (x * np.cos(tilt) + y * np.sin(tilt)) / radius
    v = (y * np.cos(tilt) - x * np.sin(tilt)) / radius
    bright = np.where(is_inside(u, v), random.uniform(*_BRIGHTNESS), 0.0)
    return np.clip(bright + random.normal(scale=_NOISE, size=bright.shape), 0, 255)
