"""Optimiser state over the life of programs: resumed, shared, replaced, reset."""

from __future__ import annotations

import copy
from collections import defaultdict

import pytest
import torch
from _models import CASES, MLP
from _parity import assert_close_states, eager_call
from torch import Tensor, nn

from torchkiln.core import Options
from torchkiln.runtime import training_model

Adam, SGD = torch.optim.Adam, torch.optim.SGD


class Pair:
    """The same module and optimiser twice: one for programs, one for plain PyTorch."""

    def __init__(self, make_optimizer, options: Options, module: nn.Module | None = None):
        self.options = options
        self.module = module or MLP()
        self.twin = copy.deepcopy(self.module)
        self.optimizer = make_optimizer(self.module)
        self.reference = make_optimizer(self.twin)
        self.program = self.new_program()
        self._rng = torch.Generator().manual_seed(0)

    def new_program(self):
        return training_model(self.module, self.options, self.optimizer)

    def batch(self) -> tuple[Tensor, ...]:
        return CASES["mlp"].batch(self._rng, 1)

    def train(self, steps: int, program=None) -> None:
        for _ in range(steps):
            batch = self.batch()
            (program or self.program)(*batch)
            eager_call(self.twin, self.reference, batch, self.options)

    def check(self) -> None:
        assert_close_states(self.module.state_dict(), self.twin.state_dict())


def adam(module: nn.Module) -> Adam:
    return Adam(module.parameters(), lr=0.02)


def momentum(module: nn.Module) -> SGD:
    return SGD(module.parameters(), lr=0.1, momentum=0.9, dampening=0.2)


@pytest.mark.parametrize("make", [adam, momentum])
def test_destroy_and_recompile_go_on_with_the_state(make, options):
    pair = Pair(make, options)
    pair.train(3)
    pair.program.destroy()
    pair.train(3)
    pair.check()


@pytest.mark.parametrize("make", [adam, momentum])
def test_two_programs_share_one_optimizer(make, options):
    pair = Pair(make, options)
    other = pair.new_program()
    for program in (pair.program, other):
        program.compile(*CASES["mlp"].batch(torch.Generator(), 1))
    for _ in range(2):
        pair.train(2)
        pair.train(2, other)
    pair.check()


@pytest.mark.parametrize("make", [adam, momentum])
def test_plain_steps_between_calls_count(make, options):
    pair = Pair(make, options)
    for _ in range(2):
        pair.train(2)
        batch = pair.batch()
        eager_call(pair.module, pair.optimizer, batch, options)
        eager_call(pair.twin, pair.reference, batch, options)
    pair.check()


@pytest.mark.parametrize("make", [adam, momentum])
def test_cleared_state_starts_afresh(make, options):
    pair = Pair(make, options)
    pair.train(3)
    for optimizer in (pair.optimizer, pair.reference):
        optimizer.state = defaultdict(dict)
    pair.train(3)
    pair.check()


def test_new_optimizer_object_takes_over_the_state(options):
    pair = Pair(adam, options)
    pair.train(3)
    pair.optimizer = Adam(pair.module.parameters(), lr=0.001)
    pair.program.set_optimizer(pair.optimizer)
    pair.reference.param_groups[0]["lr"] = 0.001
    pair.train(3)
    pair.check()
    assert pair.optimizer.state[pair.module.layers[0].weight]["step"] == 6


def test_training_begun_in_plain_pytorch_goes_on(options):
    module = MLP()
    pair = Pair(adam, options, module)
    # The first layer joins late: parameters of one group with different step counts.
    for net in (pair.module, pair.twin):
        net.layers[0].requires_grad_(False)
    for _ in range(3):
        batch = pair.batch()
        eager_call(pair.module, pair.optimizer, batch, options)
        eager_call(pair.twin, pair.reference, batch, options)
    for net in (pair.module, pair.twin):
        net.layers[0].requires_grad_(True)
    pair.train(4)
    pair.check()
    state = pair.optimizer.state
    assert [int(state[p]["step"]) for p in module.parameters()] == [4, 4, 7, 7]


def test_groups_of_different_structure_and_dtype(options):
    class Mixed(MLP):
        def __init__(self):
            super().__init__()
            self.wide = nn.Parameter(torch.ones(3, dtype=torch.float64))

        def forward(self, x, y):
            out, _ = super().forward(x, y)
            out = out * self.wide
            return out, nn.functional.cross_entropy(out, y)

    def make(module: nn.Module) -> SGD:
        first, second = module.layers[0].parameters(), module.layers[2].parameters()
        return SGD(
            [
                {"params": first, "momentum": 0.9, "nesterov": True},
                {"params": second, "weight_decay": 0.1, "maximize": True},
                {"params": [module.wide], "momentum": 0.5, "dampening": 0.1, "lr": 0.01},
            ],
            lr=0.05,
        )

    pair = Pair(make, options, Mixed())
    pair.train(5)
    pair.check()
    assert pair.module.wide.dtype == torch.float64


def test_learning_rate_is_a_snapshot_until_set_optimizer(options):
    pair = Pair(momentum, options)
    pair.train(2)
    pair.optimizer.param_groups[0]["lr"] = 100.0
    pair.train(1)
    pair.check()
    pair.reference.param_groups[0]["lr"] = 0.01
    pair.optimizer.param_groups[0]["lr"] = 0.01
    pair.program.set_optimizer(pair.optimizer)
    pair.train(2)
    pair.check()


def test_schedulers_of_torch_work(options):
    pair = Pair(adam, options)
    schedulers = [
        torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=8)
        for optimizer in (pair.optimizer, pair.reference)
    ]
    for _ in range(6):
        pair.program.set_optimizer(pair.optimizer)
        # OneCycleLR moves Adam's betas, too.
        pair.train(1)
        for scheduler in schedulers:
            scheduler.step()
    pair.check()


def test_learning_rate_may_be_a_tensor(options):
    pair = Pair(lambda m: Adam(m.parameters(), lr=torch.tensor(0.02)), options)
    pair.train(3)
    pair.check()


def test_scheduler_after_calls_of_a_program_does_not_warn(options):
    pair = Pair(momentum, options)
    scheduler = torch.optim.lr_scheduler.StepLR(pair.optimizer, 1)
    pair.program(*pair.batch())
    scheduler.step()
    assert pair.optimizer.param_groups[0]["lr"] == pytest.approx(0.01)
