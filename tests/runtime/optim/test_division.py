"""How parameters are cut into parts of equal length, and put together again."""

import pytest
import torch
from torch import nn

from torchkiln.core import OptimizerError, Options
from torchkiln.runtime import training_model
from torchkiln.runtime.optim._division import divide, flat_memory


class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.image = nn.Conv2d(3, 5, 3, bias=False).to(memory_format=torch.channels_last)
        self.line = nn.Linear(33, 7)
        self.short = nn.Parameter(torch.randn(19).to(torch.bfloat16))
        self.one = nn.Parameter(torch.ones(()))
        self.none = nn.Parameter(torch.ones(0, 4))
        self.column = nn.Parameter(torch.randn(9, 1)[:, ::2])

    def forward(self, x):
        return x


def arrangement_of(module):
    groups = [{"params": [module.image.weight]}, {"params": list(module.parameters())[1:]}]
    groups[1]["params"] = [p for p in module.parameters() if p is not module.image.weight]
    program = training_model(
        module, Options(backend="eager"), torch.optim.Adam(groups, weight_decay=0.1)
    )
    step, *_ = program._begin((torch.ones(2, 3),), {})
    return program._optimizer.arrange(step.binding)


@pytest.mark.parametrize("num_parts", [1, 2, 3, 4, 7])
def test_every_element_is_in_one_part(num_parts):
    module = Odd()
    arrangement = arrangement_of(module)
    division = divide(arrangement, num_parts)
    found = [torch.zeros(param.numel(), dtype=torch.int) for param in arrangement.params]
    for block, of_ranks in zip(division.blocks, division.pieces, strict=True):
        assert block.part % 32 == 0
        assert len(of_ranks) == num_parts
        for pieces in of_ranks:
            taken = torch.zeros(block.part, dtype=torch.int)
            for piece in pieces:
                found[piece.member][piece.begin : piece.end] += 1
                taken[piece.place] += 1
            assert taken.max() <= 1
    assert all((count == 1).all() for count in found)


@pytest.mark.parametrize("num_parts", [2, 3, 5])
@pytest.mark.parametrize("step", [7, 64, 10_000])
def test_parts_are_put_together_stretch_by_stretch(num_parts, step):
    arrangement = arrangement_of(Odd())
    division = divide(arrangement, num_parts)
    flats = [flat_memory(param) for param in arrangement.params]
    copies = [torch.full_like(flat, float("nan")) for flat in flats]
    for index, block in enumerate(division.blocks):
        rows = torch.zeros(num_parts, block.part, dtype=block.dtype)
        for rank, pieces in enumerate(division.pieces[index]):
            for piece in pieces:
                rows[rank, piece.place] = flats[piece.member][piece.begin : piece.end]
        for begin in range(0, block.part, step):
            stretch = rows[:, begin : begin + step]
            division.put_together(index, begin, stretch, dict(enumerate(copies)))
    for copy, flat in zip(copies, flats, strict=True):
        assert torch.equal(copy, flat)


def test_blocks_hold_one_dtype_and_one_group_and_keep_rows_in_their_places():
    arrangement = arrangement_of(Odd())
    division = divide(arrangement, 2)
    assert [block.dtype for block in division.blocks].count(torch.bfloat16) == 1
    for row, of_parts in zip(arrangement.rows, division.of_parts.rows, strict=True):
        assert (row.group, row.dtype) == (of_parts.group, of_parts.dtype)
        members = [m for index in of_parts.members for m in division.blocks[index].members]
        assert sorted(members) == sorted(row.members)
    # The same step for all: the length of a part does not depend on whose it is.
    assert [param.shape for param in division.of_parts.params] == [
        (block.part,) for block in division.blocks
    ]


def test_a_parameter_with_gaps_is_refused_by_name():
    module = Odd()
    module.line.weight = nn.Parameter(torch.randn(7, 66)[:, ::2])
    with pytest.raises(OptimizerError, match=r"'line.weight' has strides \(66, 2\).*contiguous"):
        divide(arrangement_of(module), 2)
