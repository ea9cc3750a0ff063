"""From the bytes of a store's texts to what they were: strings, or lists of plain values."""

from __future__ import annotations

from typing import Any

import numpy as np

from torchkiln.core import StoreError, parse_json
from torchkiln.graphs.store._axes import Counts
from torchkiln.graphs.store._blocks import REMEDY
from torchkiln.graphs.store._columns import Array


def decode_texts(column: Array, offsets: Counts, graphs: Counts, kind: str) -> list[Any]:
    """Return the texts of some graphs, or the lists that they stand for."""
    from torchkiln.graphs.store._store_kernels import gather_pieces

    starts = offsets[graphs]
    lengths = offsets[graphs + 1] - starts
    together = np.empty(int(lengths.sum()), dtype=np.uint8)
    gather_pieces(column, together, starts, lengths)
    data = together.tobytes()
    ends = lengths.cumsum().tolist()
    try:
        return _decode(data, ends, kind)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"a text of the store cannot be decoded ({error}); {REMEDY}") from error


def _decode(data: bytes, ends: list[int], kind: str) -> list[Any]:
    if data.isascii():
        # Decoded at once: a character is a byte.
        text = data.decode("ascii")
        texts = [text[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
    else:
        pieces = (data[begin:end] for begin, end in zip([0, *ends], ends, strict=False))
        texts = [piece.decode("utf-8", "surrogatepass") for piece in pieces]
    return texts if kind == "text" else [parse_json(text, "a text") for text in texts]
