"""What could not be resumed exactly is refused before anything is trained, or kept as it is."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ChainedScheduler, ExponentialLR, MultiStepLR, SequentialLR
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

from torchkiln.core import OptionsError
from torchkiln.data import LoaderError
from torchkiln.training._batches import require_repeatable
from torchkiln.training._evaluation import evaluating
from torchkiln.training._schedule import RateSchedule, TorchSchedule

DATA = TensorDataset(torch.arange(8.0))


def sgd() -> torch.optim.Optimizer:
    return torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)


@pytest.mark.parametrize("kind", [ChainedScheduler, SequentialLR])
def test_milestones_deep_in_a_scheduler_are_refused(kind):
    """JSON makes strings of them, and no milestone would ever be reached."""
    optimizer = sgd()
    parts = [ExponentialLR(optimizer, 0.9), MultiStepLR(optimizer, [2, 4])]
    chosen = kind(parts) if kind is ChainedScheduler else kind(optimizer, parts, milestones=[1])
    with pytest.raises(OptionsError, match="cannot be kept in a checkpoint"):
        TorchSchedule(chosen).identity()


@pytest.mark.parametrize("rate", [np.float32(0.5), torch.tensor(0.5), 0.5])
def test_a_rate_may_be_any_number(rate):
    optimizer = sgd()
    schedule = RateSchedule(optimizer, lambda update: rate)
    schedule.before_step(0)
    assert type(optimizer.param_groups[0]["lr"]) is float
    assert schedule.identity()["first_rates"] == [0.5, 0.5, 0.5]


def test_a_generator_that_only_the_sampler_has_is_refused():
    generator = torch.Generator()
    sampler = RandomSampler(DATA, generator=generator)
    for loader in (
        DataLoader(DATA, batch_size=2, sampler=sampler),
        DataLoader(DATA, batch_sampler=BatchSampler(sampler, 2, drop_last=False)),
    ):
        with pytest.raises(LoaderError, match="generator of its own"):
            require_repeatable(loader)
    require_repeatable(DataLoader(DATA, batch_size=2, sampler=sampler, generator=generator))
    require_repeatable(DataLoader(DATA, batch_size=2, shuffle=True, generator=generator))


def test_frozen_parts_stay_frozen():
    module = nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1))
    module[1].eval()
    with evaluating(module):
        assert not any(part.training for part in module.modules())
    assert [part.training for part in module.modules()] == [True, True, False]
