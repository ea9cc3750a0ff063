"""What a tensor and its storage say about themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch._utils
from torch import Tensor


def version_of(tensor: Tensor) -> int:
    """Return a number that grows with every write to the tensor's memory.

    torch: `_version` counts in-place operations, of views too and of fake tensors; 0 at first.
    for: inputs that forward writes to are found while it is recorded, and written back; processes
        that train together notice that one of them loaded other weights.
    """
    return tensor._version


def versions_of(tensors: Sequence[Tensor]) -> list[int]:
    """Return what `version_of` says of each; 0 for those of inference mode, which nobody counts.

    torch: `_version` of a tensor that was made in inference mode is a RuntimeError.
    for: all weights are asked with every call of a program that several processes train.
    """
    try:
        return [tensor._version for tensor in tensors]
    except RuntimeError:
        return [0 if tensor.is_inference() else tensor._version for tensor in tensors]


def is_view(tensor: Tensor) -> bool:
    """Whether the tensor looks into the memory of another one.

    torch: `_is_view()` is True for what autograd knows as a view, as recorded ones are.
    for: a program's outputs share no memory with each other or with its inputs.
    """
    return tensor._is_view()


def storage_key(tensor: Tensor) -> int:
    """Return what tells the tensor's memory from any other that is alive.

    torch: `_cdata` is the address of the storage object, equal for all views, also without values.
    for: memory that is shared is copied in outputs, and counted once in predictions.
    """
    return tensor.untyped_storage()._cdata


def mark_for_layers(mask: Tensor) -> Tensor:
    """Return a mask under a mark that a recorded graph shows: it goes to layers, not to the loss.

    torch: `aten.alias` is a view of the whole tensor, recorded as an operator of its own; nothing
        else records it for booleans.
    for: a mask that only layers use does not keep filler out of a loss.
    """
    return torch.ops.aten.alias(mask)


def storage_of(tensor: Tensor) -> Any:
    """Return the memory of a tensor as an object that takes attributes.

    torch: `untyped_storage()` is the same object for all views, and keeps its attributes as long as
        one of them lives.
    for: batches whose tensors look into one memory are known by that memory.
    """
    return tensor.untyped_storage()


def has_gradient_hooks(tensor: Tensor) -> bool:
    """Whether somebody registered hooks on the tensor's gradient.

    torch: `register_hook` and `register_post_accumulate_grad_hook` fill these two dictionaries.
    for: hooks are Python that a program does not run, which a warning says.
    """
    return bool(tensor._backward_hooks or getattr(tensor, "_post_accumulate_grad_hooks", None))


def typed_storage(tensor: Tensor) -> tuple[int, Any]:
    """Return a key of the tensor's storage, and the form of it that `torch.save` takes.

    torch: `_typed_storage()` is persisted by `torch.save`; `_cdata` is equal for all its views.
    for: very many views of a few tensors are saved three times as fast, in an ordinary file.
    """
    storage = tensor._typed_storage()
    return storage._cdata, storage


# torch: what pickles of tensors name as their maker: (storage, offset, size, stride, needs
# gradient, hooks). for: the same files as `typed_storage`.
rebuild_tensor = torch._utils._rebuild_tensor_v2
