"""Passing values between processes with their tensors in shared memory.

A value is pickled, but each plain tensor in it, at any depth and in any type of object, is replaced
by its address in an *arena*: an anonymous piece of shared memory. The memory has no name in the
file system, so nothing can be left behind, however the processes end; and it does not count against
the size of `/dev/shm`, which containers often limit to 64 MB.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import tempfile
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

# Vector loads of compiled programs want aligned data, and a cache line is the largest of them.
_ALIGNMENT = 64


class ArenaAddress(NamedTuple):
    """Where a tensor lies in an arena."""

    offset: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]


class Packed(NamedTuple):
    """A value ready to be copied into an arena."""

    payload: bytes
    tensors: list[tuple[ArenaAddress, Tensor]]
    num_bytes: int


def pack(value: Any) -> Packed:
    """Pickle `value` and plan where its tensors go.

    Tensors that are not plain (subclasses, sparse, quantised, on another device) are pickled whole.
    """
    buffer = io.BytesIO()
    pickler = _Pickler(buffer)
    pickler.dump(value)
    return Packed(buffer.getvalue(), list(pickler.addresses.values()), pickler.num_bytes)


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        # By identity, so that a tensor that occurs twice stays one; holding it keeps its id unique.
        self.addresses: dict[int, tuple[ArenaAddress, Tensor]] = {}
        self.num_bytes = 0

    def persistent_id(self, obj: Any) -> ArenaAddress | None:
        if type(obj) is not Tensor or not _is_plain(obj):
            return None
        known = self.addresses.get(id(obj))
        if known is not None:
            return known[0]
        # The strides of a dense copy: channels_last stays channels_last, gaps are closed.
        stride = torch.empty_like(obj, device="meta").stride()
        address = ArenaAddress(self.num_bytes, obj.dtype, tuple(obj.shape), tuple(stride))
        self.addresses[id(obj)] = (address, obj)
        size = obj.numel() * obj.element_size()
        self.num_bytes += -(-size // _ALIGNMENT) * _ALIGNMENT
        return address


def _is_plain(tensor: Tensor) -> bool:
    return (
        tensor.layout is torch.strided and tensor.device.type == "cpu" and not tensor.is_quantized
    )


class Arena:
    """A piece of anonymous shared memory, mapped into this process."""

    def __init__(self, descriptor: int, num_bytes: int) -> None:
        self._memory = mmap.mmap(descriptor, num_bytes)
        self.num_bytes = num_bytes

    def write(self, packed: Packed) -> None:
        for address, tensor in packed.tensors:
            if tensor.numel():
                _view(self._memory, address).copy_(tensor.detach())

    def read(self, payload: bytes, on_free: Callable[[], None]) -> Any:
        """Return the value; `on_free` is called once none of its tensors is in use any more.

        The tensors are views of the arena, so it must not be written again before that.
        """
        # Every tensor holds on to this array, and nothing else does after the return.
        holder = np.frombuffer(self._memory, dtype=np.uint8)
        weakref.finalize(holder, on_free).atexit = False
        return _Unpickler(io.BytesIO(payload), holder).load()


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, holder: np.ndarray) -> None:
        super().__init__(file)
        self._holder = holder
        self._tensors: dict[ArenaAddress, Tensor] = {}

    def persistent_load(self, pid: ArenaAddress) -> Tensor:
        if 0 in pid.shape:
            return torch.empty(pid.shape, dtype=pid.dtype)
        # Addresses are unique, so an equal one is the same tensor.
        if pid not in self._tensors:
            self._tensors[pid] = _view(self._holder, pid)
        return self._tensors[pid]


def _view(memory: Any, address: ArenaAddress) -> Tensor:
    count = int(np.prod(address.shape, dtype=np.int64))
    flat = torch.frombuffer(memory, dtype=address.dtype, count=count, offset=address.offset)
    return flat.as_strided(address.shape, address.stride)


def make_shared_memory(num_bytes: int) -> int:
    """Return the descriptor of new anonymous memory that can be sent to another process."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("torchkiln-prefetch", os.MFD_CLOEXEC)
    else:  # a file that is unlinked from the start, where the system has nothing better
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, num_bytes)
    return descriptor
