"""Keys and values that models of Hugging Face's `transformers` return for the next token.

A cache holds layers, and layers hold tensors, in objects of `transformers.cache_utils`. Importing
this module registers `CacheContainer`; `torchkiln.data` does so as soon as that one is loaded.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from torchkiln.data._structure import register_container

_SIMPLE = (bool, int, float, str, torch.dtype, torch.device, type, type(None))


class CacheContainer:
    """Takes the tensors out of a cache, layer by layer, and puts others in."""

    def tensors(self, value: Any) -> list[Tensor]:
        """Return the tensors of a cache in the order of its attributes."""
        return [entry for _, entry in _leaves(value) if isinstance(entry, Tensor)]

    def names(self, value: Any) -> list[str]:
        """Return the name of each tensor, as in `layers[0].keys`."""
        return [path for path, entry in _leaves(value) if isinstance(entry, Tensor)]

    def constants(self, value: Any) -> dict[str, Any]:
        """Return what else forward can read."""
        return {
            path: entry if isinstance(entry, _SIMPLE) else type(entry)
            for path, entry in _leaves(value)
            if not isinstance(entry, Tensor)
        }

    def rebuild(self, original: Any, tensors: Iterator[Tensor]) -> Any:
        """Return a cache like `original` with layers of its own, and other tensors in them."""
        return _copy(original, tensors)


def _parts(value: Any) -> list[tuple[str, Any]] | None:
    """Return what a part of a cache consists of; None for what is no such part."""
    if isinstance(value, list | tuple):
        return [(f"[{index}]", entry) for index, entry in enumerate(value)]
    if isinstance(value, dict):
        return [(f"[{key!r}]", entry) for key, entry in value.items()]
    if type(value).__module__ == Cache.__module__:
        return [(f".{name}", entry) for name, entry in vars(value).items()]
    return None


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    # A subclass of the user's counts as the cache that it is; what it holds must be known.
    parts = _parts(value) if path else [(f".{name}", entry) for name, entry in vars(value).items()]
    if parts is None:
        yield path.removeprefix("."), value
        return
    for name, entry in parts:
        yield from _leaves(entry, path + name)


def _copy(value: Any, tensors: Iterator[Tensor], *, is_cache: bool = True) -> Any:
    if isinstance(value, Tensor):
        return next(tensors)
    if isinstance(value, list | tuple):
        return type(value)([_copy(entry, tensors, is_cache=False) for entry in value])
    if isinstance(value, dict):
        return {key: _copy(entry, tensors, is_cache=False) for key, entry in value.items()}
    if not is_cache and _parts(value) is None:
        return value
    result = copy.copy(value)
    for name, entry in vars(value).items():
        result.__dict__[name] = _copy(entry, tensors, is_cache=False)
    return result


register_container(Cache, CacheContainer())
