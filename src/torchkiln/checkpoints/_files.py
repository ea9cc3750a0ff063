"""Tensors in a safetensors file: any dtype, any layout, shared storage kept shared."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load, save_file
from torch import Tensor

from torchkiln.core import CheckpointError


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Write `tensors` and return the names that were left out, with the name they are equal to.

    safetensors refuses tensors that share memory. Those that are the same (tied weights) are
    written once; those that merely overlap are written each.
    """
    kept: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    first_name: dict[tuple[object, ...], str] = {}
    storages: set[int] = set()
    for name, tensor in tensors.items():
        value = _on_host(name, tensor)
        form = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if value.numel() and form in first_name:
            aliases[name] = first_name[form]
            continue
        first_name[form] = name
        storage = value.untyped_storage().data_ptr()
        kept[name] = value.clone() if storage in storages else value
        storages.add(storage)
    save_file(kept, path)
    return aliases


def _on_host(name: str, tensor: Tensor) -> Tensor:
    try:
        return tensor.detach().cpu().contiguous()
    except Exception as error:  # meta tensors, and classes of the user's own
        raise CheckpointError(
            f"{name!r} cannot be saved ({type(error).__name__}: {error}); give it values that can "
            "be copied to the host, or leave it out"
        ) from error


def read_tensors(content: bytes, aliases: Mapping[str, str]) -> dict[str, Tensor]:
    """Return what `write_tensors` was given, from the content of its file.

    Equal tensors are one object again. Not from the file itself: safetensors would map it, and
    whoever overwrites the file later would change the tensors, or end the process.
    """
    tensors: dict[str, Tensor] = load(content)
    return {**tensors, **{name: tensors[other] for name, other in aliases.items()}}


def find_non_finite(tensors: Mapping[str, Tensor]) -> str | None:
    """Return the name of a tensor that holds NaN or infinity, if there is one."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            return name
    return None
