"""What this process knows about filler: whether it made a batch with some, and which tensors do."""

from __future__ import annotations

from torch import Tensor

from torchkiln.torch_internals._tensors import storage_of

_seen = False

# An attribute of the memory that all tensors of a batch, or one of them, look into.
_MARK = "_torchkiln_padded"


def note_padding() -> None:
    """Remember that a batch with filler was made (or a loader that makes them)."""
    global _seen
    _seen = True


def padding_seen() -> bool:
    """Whether a batch with filler was made: then unmasked statistics deserve a warning."""
    return _seen


def mark_padded(tensor: Tensor) -> None:
    """Remember that this tensor, and every view of it, belongs to a batch with filler."""
    setattr(storage_of(tensor), _MARK, True)


def is_padded(tensor: Tensor) -> bool:
    """Whether a tensor belongs to a batch with filler, as far as one can know: copies do not."""
    return hasattr(storage_of(tensor), _MARK)
