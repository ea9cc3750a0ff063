"""Joining and cutting batches along dim 0: several into one, pieces into a fixed size."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from torchkiln.data._errors import RebatchError
from torchkiln.data._structure import concatenate, flatten, map_tensors, paths


def join_groups(batches: Iterable[Any], group_size: int, *, drop_last: bool) -> Iterator[Any]:
    """Yield `group_size` consecutive batches concatenated into one.

    An incomplete last group is dropped, or comes out smaller.
    """
    iterator = iter(batches)
    while group := list(itertools.islice(iterator, group_size)):
        if len(group) < group_size and drop_last:
            return
        yield group[0] if len(group) == 1 else concatenate(group)


def rebatch(batches: Iterable[Any], size: int, *, drop_last: bool) -> Iterator[Any]:
    """Yield the elements of `batches`, in their order, in batches of exactly `size`.

    The last batch is dropped if it is incomplete, or comes out smaller. A batch that already has
    the right size passes through without a copy.
    """
    pieces: list[Any] = []
    held = 0
    for batch in batches:
        length = batch_length(batch)
        start = 0
        while start < length:
            end = min(length, start + size - held)
            pieces.append(batch if end - start == length else _cut(batch, start, end))
            held += end - start
            start = end
            if held == size:
                yield _join(pieces)
                pieces, held = [], 0
    if pieces and not drop_last:
        yield _join(pieces)


def batch_length(batch: Any) -> int:
    """Return the size of dim 0 that all tensors of `batch` share."""
    tensors, node = flatten(batch, "batch")
    if not tensors:
        raise RebatchError(
            f"a batch of type {type(batch).__name__} holds no tensor to cut along dim 0; "
            "return tensors from the dataset, or register the type with register_container"
        )
    lengths = [tensor.shape[0] if tensor.dim() else None for tensor in tensors]
    for path, length in zip(paths(node), lengths, strict=True):
        if length is None or length != lengths[0]:
            found = "is a 0-dim tensor" if length is None else f"has {length} elements"
            raise RebatchError(
                f"{path} {found} in dim 0 where {lengths[0]} were expected; all tensors of a "
                "batch need the same dim 0 to be rebatched"
            )
    assert lengths[0] is not None
    return lengths[0]


def _cut(batch: Any, start: int, end: int) -> Any:
    return map_tensors(lambda tensor: tensor[start:end], batch)


def _join(pieces: list[Any]) -> Any:
    return pieces[0] if len(pieces) == 1 else concatenate(pieces)
