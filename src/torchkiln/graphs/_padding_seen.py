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


def mark_padded(tensor: Tensor, graph_mask: str = "graph_mask") -> None:
    """Remember that this tensor, and every view of it, belongs to a batch with filler.

    Args:
        tensor: Any of the batch.
        graph_mask: How the mask of graphs is called in that batch.
    """
    setattr(storage_of(tensor), _MARK, graph_mask)


def is_padded(tensor: Tensor) -> bool:
    """Whether a tensor belongs to a batch with filler, as far as one can know: copies do not."""
    return hasattr(storage_of(tensor), _MARK)


def graph_mask_of(tensor: Tensor) -> str | None:
    """Return the name of the mask of graphs in the batch of a tensor; None if it has no filler."""
    name: str | None = getattr(storage_of(tensor), _MARK, None)
    return name
