"""Gradient sums in flat buffers: any form, aligned, zero when they should be, the same numbers."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import nn

from torchkiln import Options, training_model
from torchkiln.runtime.execute._gradient_sums import GradientSums

CPU = torch.device("cpu")


def forms():
    return [
        torch.empty(3, 5),
        torch.empty(4, 2, 3, 3).to(memory_format=torch.channels_last),
        torch.empty(7, dtype=torch.float64),
        torch.empty(()),
        torch.empty(6, 2).t(),
        torch.empty(3, dtype=torch.bfloat16),
        torch.empty(2, dtype=torch.complex64),
        torch.empty(0, 3),
    ]


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 7])
def test_views_have_the_forms_that_were_asked_for(num_ranks):
    sums = GradientSums(forms(), CPU, num_ranks=num_ranks, num_slots=3)
    for form, view in zip(forms(), sums.views, strict=True):
        assert (view.shape, view.stride(), view.dtype) == (form.shape, form.stride(), form.dtype)
        assert view.data_ptr() % 64 == 0
        assert not view.any()
    assert len(sums.buffers) == 4, "one for each dtype"
    assert all(buffer.numel() % num_ranks == 0 for buffer in sums.buffers.values())


def test_nothing_overlaps():
    sums = GradientSums(forms(), CPU, num_ranks=3, num_slots=2)
    parts = [*sums.views, sums.tail]
    for number, part in enumerate(parts, start=1):
        part.fill_(number)
    for number, part in enumerate(parts, start=1):
        assert (part == number).all()


def test_everything_is_forgotten():
    sums = GradientSums(forms(), CPU, num_ranks=2, num_slots=2)
    for buffer in sums.buffers.values():
        buffer.fill_(3)
    sums.clear_()
    assert not any(part.any() for part in [*sums.views, sums.tail])


@pytest.mark.parametrize(
    ("dtype", "tail"),
    [
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
        # Half precision cannot count: the tail has a buffer of its own.
        (torch.bfloat16, torch.float32),
    ],
)
def test_the_tail_needs_no_collective_of_its_own_if_a_buffer_can_hold_it(dtype, tail):
    sums = GradientSums([torch.empty(5, dtype=dtype)], CPU, num_ranks=2, num_slots=4)
    assert sums.tail.shape == (2, 4)
    assert sums.tail.dtype == tail
    assert len(sums.buffers) == len({dtype, tail})
    assert float(torch.tensor(2**20 - 1, dtype=tail)) == 2**20 - 1


class Mixed(nn.Module):
    """Convolutions that lie channels last, a transposed weight, a bias, half of it in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3)
        self.weight = nn.Parameter(torch.randn(5, 64).t() / 8)
        self.last = nn.Linear(5, 3).double()
        self.to(memory_format=torch.channels_last)

    def forward(self, x, y):
        hidden = torch.tanh(self.first(x).flatten(1) @ self.weight)
        return F.mse_loss(self.last(hidden.double()), y)


@pytest.mark.parametrize(
    "backend", ["eager", "capture", pytest.param("inductor", marks=pytest.mark.inductor)]
)
def test_views_of_a_buffer_get_the_bits_of_tensors_of_their_own(backend):
    torch.manual_seed(0)
    module = Mixed()
    options = Options(backend=backend, gradient_accumulation=3, show_progress=False)
    program = training_model(module, options, torch.optim.Adam(module.parameters()))
    x, y = torch.randn(12, 3, 6, 6), torch.randn(12, 3).double()
    program.compile(x, y)
    executor, binding = program.executor, program._optimizer
    (tables,) = binding.next_tables(1, 3)
    own = [torch.zeros_like(view) for view in executor.sharing.sums]
    assert [t.stride() for t in own] == [t.stride() for t in executor.sharing.sums]
    assert not all(t.is_contiguous() for t in own)
    for sums in (own, executor.sharing.sums):
        for micro_batch in zip(x.split(4), y.split(4), strict=True):
            executor._runs["accumulate"]([*executor._tensors, *sums, tables[-1], *micro_batch])
    for mine, view in zip(own, executor.sharing.sums, strict=True):
        assert mine.any()
        assert torch.equal(mine, view)
    before = [p.detach().clone() for p in module.parameters()]
    kept = [t.clone() for t in binding.state_tensors]
    results = []
    for sums in (own, executor.sharing.sums):
        with torch.no_grad():
            for tensor, value in zip(module.parameters(), before, strict=True):
                tensor.copy_(value)
        for tensor, value in zip(binding.state_tensors, kept, strict=True):
            tensor.copy_(value)
        executor._runs["update"]([*binding.params, *sums, *binding.state_tensors, *tables])
        results.append([p.detach().clone() for p in module.parameters()])
        assert not any(total.any() for total in sums), "an update leaves zeros"
    for one, other, start in zip(*results, before, strict=True):
        assert torch.equal(one, other)
        assert not torch.equal(one, start)
