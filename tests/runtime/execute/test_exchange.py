"""The exchange of gradient sums, with a group whose other members only exist here."""

import pytest
import torch

from torchkiln.core import ArgumentError, DistributedError, ReductionOrder
from torchkiln.distributed import World
from torchkiln.runtime.execute._exchange import Exchange
from torchkiln.runtime.execute._gradient_sums import GradientSums
from torchkiln.runtime.execute._notes import Notes

CPU = torch.device("cpu")


class OtherRank:
    """A group of two, whose other rank adds what `write` puts into a copy of the buffers."""

    def __init__(self, write=lambda flat: flat.zero_()):
        self.world = World(0, 2, 0, 2)
        self.place = "start"
        self.orders = []
        self.write = write

    def sum_(self, flat, order):
        self.orders.append(order)
        other = flat.clone()
        self.write(other)
        flat += other


def make(write, dtype=torch.float32):
    group = OtherRank(write)
    exchange = Exchange(group, ReductionOrder.FOLDED)
    sums = GradientSums(
        [torch.empty(3, dtype=dtype)], CPU, num_ranks=2, num_slots=exchange.num_slots(2)
    )
    return group, exchange, sums


def reply(number, digest, *told):
    """Return a function that writes what rank 1 would send, with gradients of one."""

    def write(flat):
        flat.zero_()
        flat[:3] = 1
        flat[-len(told) - 2 :] = torch.tensor([number, digest, *told], dtype=flat.dtype)

    return write


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_are_added_and_rows_are_gathered(dtype):
    group, exchange, sums = make(reply(0, 17, 0.25, float("inf")), dtype)
    sums.views[0].copy_(torch.tensor([1.0, 2.0, 3.0]))
    rows = exchange.sum_(sums, 17 + 2**20, [0.5, float("nan")])
    assert sums.views[0].tolist() == [2.0, 3.0, 4.0]
    assert rows[:, 0].tolist() == [0.5, 0.25]
    assert rows[0, 1].isnan()
    assert rows[1, 1].isinf()
    assert (rows.dtype, rows.device) == (torch.float32, CPU)
    assert group.orders == ["folded"]
    assert group.place == "update 1"
    assert exchange.seconds > 0


def test_what_was_told_before_is_not_told_again():
    group, exchange, sums = make(reply(0, 0, 1.0, 2.0))
    exchange.sum_(sums, 0, [3.0, 4.0])
    sums.views[0].zero_()
    group.write = reply(1, 0, 5.0, 6.0)
    rows = exchange.sum_(sums, 0, [7.0, 8.0])
    assert rows.tolist() == [[7.0, 8.0], [5.0, 6.0]]


def test_another_update_is_an_error_that_says_who_is_where():
    _, exchange, sums = make(reply(4, 0, 0.0, 0.0))
    with pytest.raises(DistributedError, match=r"rank 0 at 1, rank 1 at 5.*same calls"):
        exchange.sum_(sums, 0, [0.0, 0.0])


def test_other_numbers_are_an_error_that_names_the_rank():
    _, exchange, sums = make(reply(0, 5, 0.0, 0.0))
    with pytest.raises(DistributedError, match="rank 1 would update with other numbers"):
        exchange.sum_(sums, 6, [0.0, 0.0])


def test_complex_numbers_travel_as_real_ones():
    group = OtherRank(lambda flat: flat.fill_(1) if flat.numel() == 4 else flat.zero_())
    kinds = []
    group.sum_, add = (lambda flat, order: (kinds.append(flat.dtype), add(flat, order))), group.sum_
    sums = GradientSums([torch.empty(2, dtype=torch.complex64)], CPU, num_ranks=2, num_slots=2)
    group.world = World(0, 1, 0, 1)  # no row for the other: its checks are not of interest here
    sums.tail = sums.tail[:1]
    Exchange(group, ReductionOrder.FASTEST).sum_(sums, 0, [])
    assert kinds == [torch.float32, torch.float32]
    assert sums.views[0].tolist() == [1 + 1j, 1 + 1j]


def test_notes_must_be_as_many_as_agreed():
    notes = Notes()
    notes.agree(2, lambda outputs: [1.0])
    with pytest.raises(ArgumentError, match="returned 1 numbers, but 2 were agreed on"):
        notes.written([])
    with pytest.raises(ArgumentError, match="whole number"):
        notes.agree(-1, list)
    assert notes.told(3).shape == (0, 3, 2)
