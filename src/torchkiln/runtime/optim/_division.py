"""How an update is divided among processes: each changes one part of all parameters.

The parameters of a row of the arrangement that share a dtype make a block: they lie one after the
other, in the order of their memory, and the block is cut into parts of equal length. So what a
process does with its part is the same step in all of them, and one executable serves all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchkiln.core import OptimizerError
from torchkiln.runtime.optim._arrangement import Arrangement, Row

# Elements that parameters and parts begin at a multiple of: at least a line of the cache, in the
# narrowest dtype.
_STEP = 32


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of a parameter's memory that lies in one part of a block.

    Args:
        member: Whose memory it is.
        begin: Where it begins there, in elements.
        end: Where it ends there.
        at: Where it begins in the part.
    """

    member: int
    begin: int
    end: int
    at: int

    @property
    def place(self) -> slice:
        """Where it lies in the part."""
        return slice(self.at, self.at + self.end - self.begin)

    def within(self, begin: int, end: int) -> Piece | None:
        """Return what of it lies between two places of the part, counted from the first."""
        first = max(begin - self.at, 0)
        last = min(end - self.at, self.end - self.begin)
        if first >= last:
            return None
        return Piece(self.member, self.begin + first, self.begin + last, self.at + first - begin)


@dataclass(frozen=True, slots=True)
class Block:
    """Parameters that lie one after the other.

    Args:
        name: For people.
        dtype: Of the parameters.
        members: Their places in the arrangement.
        offsets: Where in the block each of them begins.
        part: How many elements each process has of it.
    """

    name: str
    dtype: torch.dtype
    members: tuple[int, ...]
    offsets: tuple[int, ...]
    part: int


@dataclass(frozen=True, slots=True, eq=False)
class Division:
    """The parameters of an arrangement, divided."""

    num_parts: int
    blocks: tuple[Block, ...]
    # For each block and part, what of which parameter lies there.
    pieces: tuple[tuple[tuple[Piece, ...], ...], ...]
    # An update as one process sees it: its part of each block is a parameter, without memory.
    of_parts: Arrangement

    def empty_state(self, index: int, device: torch.device) -> dict[str, Tensor]:
        """Return memory for the state of a part of a block."""
        arrangement, block = self.of_parts, self.blocks[index]
        dtypes = arrangement.recipe.state_dtypes
        return {
            name: torch.empty(
                block.part, dtype=dtypes.of(name, arrangement.params[index]), device=device
            )
            for name in arrangement.rule(index).state_names
        }

    def put_together(
        self, index: int, begin: int, rows: Tensor, flats: Mapping[int, Tensor]
    ) -> None:
        """Copy what all processes have of a block to where it belongs.

        Args:
            index: Of the block.
            begin: Where in each part the rows begin.
            rows: A stretch of each part.
            flats: The memory of whole members, in one dimension; others are left out.
        """
        for rank, row in enumerate(rows):
            for piece in self.pieces[index][rank]:
                here = piece.within(begin, begin + len(row))
                if here is not None and here.member in flats:
                    flats[here.member][here.begin : here.end].copy_(row[here.place])


def divide(arrangement: Arrangement, num_parts: int) -> Division:
    """Divide the parameters of an arrangement into `num_parts` parts.

    Raises:
        OptimizerError: A parameter is no whole piece of memory.
    """
    blocks: list[Block] = []
    rows: list[Row] = []
    for row in arrangement.rows:
        by_dtype: dict[torch.dtype, list[int]] = {}
        for member in row.members:
            _check_dense(arrangement.params[member], arrangement.names[member])
            by_dtype.setdefault(arrangement.params[member].dtype, []).append(member)
        own = range(len(blocks), len(blocks) + len(by_dtype))
        rows.append(Row(row.group, row.dtype, tuple(own)))
        for dtype, members in by_dtype.items():
            sizes = [arrangement.params[member].numel() for member in members]
            name = _name(arrangement, members)
            blocks.append(_block(name, dtype, members, sizes, num_parts))
    sizes_of = [param.numel() for param in arrangement.params]
    pieces = tuple(
        tuple(_pieces(block, rank, sizes_of) for rank in range(num_parts)) for block in blocks
    )
    forms = [torch.empty(block.part, dtype=block.dtype, device="meta") for block in blocks]
    names = [block.name for block in blocks]
    of_parts = Arrangement(arrangement.recipe, forms, names, tuple(rows), arrangement.held)
    return Division(num_parts, tuple(blocks), pieces, of_parts)


def flat_memory(tensor: Tensor) -> Tensor:
    """Return the elements of a dense tensor in the order of its memory, which it shares."""
    return tensor.detach().as_strided((tensor.numel(),), (1,))


def _check_dense(param: Tensor, name: str) -> None:
    expected = 1
    for stride, size in sorted(zip(param.stride(), param.shape, strict=True)):
        if size == 1 or not param.numel():
            continue
        if stride == expected:
            expected *= size
            continue
        raise OptimizerError(
            f"{name!r} has strides {tuple(param.stride())} for the shape {tuple(param.shape)}, so "
            "it is no whole piece of memory, and its optimiser state cannot be divided; make it "
            "from tensor.contiguous(), or leave out shard_optimizer"
        )


def _name(arrangement: Arrangement, members: Sequence[int]) -> str:
    first = arrangement.names[members[0]]
    return first if len(members) == 1 else f"{first} to {arrangement.names[members[-1]]}"


def _block(
    name: str, dtype: torch.dtype, members: Sequence[int], sizes: Sequence[int], num_parts: int
) -> Block:
    offsets, length = [], 0
    for size in sizes:
        offsets.append(length)
        length += -(-size // _STEP) * _STEP
    # No part is empty: nothing is the length of no tensor.
    part = max(-(-length // (num_parts * _STEP)), 1) * _STEP
    return Block(name, dtype, tuple(members), tuple(offsets), part)


def _pieces(block: Block, rank: int, sizes: Sequence[int]) -> tuple[Piece, ...]:
    """Return what lies in the part of a rank."""
    begin, found = rank * block.part, []
    for member, offset in zip(block.members, block.offsets, strict=True):
        whole = Piece(member, 0, sizes[member], offset)
        piece = whole.within(begin, begin + block.part)
        if piece is not None:
            found.append(piece)
    return tuple(found)
