"""The numbers of an update as inputs of a program."""

import pytest
import torch
from torch import nn

from torchkiln.runtime import LAMB
from torchkiln.runtime.call._binding import bind
from torchkiln.runtime.optim._arrangement import arrange
from torchkiln.runtime.optim._hyper import read_hyper
from torchkiln.runtime.optim._tables import HyperTables, empty_tables, share_of_micro_batch

OPTIMIZERS = {
    "SGD": lambda params: torch.optim.SGD(params, lr=0.1),
    "SGD with momentum": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
    "Adam": lambda params: torch.optim.Adam(params, amsgrad=True),
    "AdamW": torch.optim.AdamW,
    "RMSprop": lambda params: torch.optim.RMSprop(params, centered=True),
    "LAMB": LAMB,
}


@pytest.fixture(params=list(OPTIMIZERS))
def optimizer(request):
    torch.manual_seed(0)
    layer = nn.ModuleList([nn.Linear(3, 2), nn.Linear(2, 1).double()])
    made = OPTIMIZERS[request.param](
        [{"params": layer[0].parameters()}, {"params": layer[1].parameters(), "lr": 0.5}]
    )
    return made, arrange(made, bind(layer))


def test_a_rule_gives_as_many_numbers_as_it_says(optimizer):
    made, arrangement = optimizer
    hyper = read_hyper(made)
    for rule, group in zip(arrangement.recipe.rules, hyper.groups, strict=True):
        assert len(rule.hyper(group, 1)) == len(rule.hyper(group, 7)) == rule.num_hyper


def test_memory_for_tables_has_the_form_of_tables(optimizer):
    made, arrangement = optimizer
    (tables,) = HyperTables(arrangement).upcoming(read_hyper(made), [0, 0], 1)
    empty = empty_tables(arrangement)
    assert [table.dtype for table in tables] == [torch.float32, torch.float64, torch.float32]
    assert [(t.shape, t.dtype, t.device) for t in tables] == [
        (t.shape, t.dtype, t.device) for t in empty
    ]


def test_tables_are_kept_while_their_numbers_stay():
    layer = nn.Linear(3, 2)
    made = torch.optim.SGD(layer.parameters(), lr=0.1)
    tables = HyperTables(arrange(made, bind(layer)))
    (first,), (second,) = (tables.upcoming(read_hyper(made), [step], 1) for step in (1, 2))
    assert all(one is other for one, other in zip(first, second, strict=True))
    made.param_groups[0]["lr"] = 0.2
    ((changed, same),) = tables.upcoming(read_hyper(made), [3], 1)
    assert changed[0, 0].item() == pytest.approx(0.2)
    assert same is first[1]


def test_updates_ahead_count_their_steps():
    layer = nn.Linear(3, 2)
    made = torch.optim.Adam(layer.parameters(), lr=0.1)
    tables = HyperTables(arrange(made, bind(layer)))
    together = tables.upcoming(read_hyper(made), [4], 3)
    apart = [tables.upcoming(read_hyper(made), [4 + ahead], 1)[0] for ahead in range(3)]
    for one, other in zip(together, apart, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.complex128])
def test_a_share_gives_the_bits_of_a_division_by_the_count(dtype):
    layer = nn.Linear(3, 2)
    made = torch.optim.SGD(layer.parameters(), lr=0.1)
    tables = HyperTables(arrange(made, bind(layer)))
    grad = torch.randn(50, dtype=dtype, generator=torch.Generator().manual_seed(0))
    for count in [*range(1, 400), 999, 2**20 - 1, 16_777_215]:
        ((*_, scalars),) = tables.upcoming(read_hyper(made), [0], 1, count)
        assert scalars.dtype == torch.float32
        share = share_of_micro_batch(scalars, dtype)
        assert torch.equal(grad * share, grad * (1.0 / count)), count
        assert (grad * share).dtype == dtype
