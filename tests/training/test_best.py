"""The weights with the smallest validation error are kept."""

import math

import pytest
import torch

from torchkiln.training._best import BestWeights


@pytest.fixture
def network():
    return torch.nn.Linear(2, 1)


def fill(network, value):
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.fill_(value)


def weights_in_use(best, network):
    with best.in_use():
        return float(network.weight[0, 0].detach())


def test_the_smallest_error_wins_and_the_first_of_two(network):
    best = BestWeights(network)
    for epoch, error in enumerate([3.0, 1.0, 2.0, 1.0]):
        fill(network, epoch)
        best.offer(error, epoch)
    assert best.epoch == 1
    assert weights_in_use(best, network) == 1.0
    assert float(network.weight[0, 0].detach()) == 3.0  # its own again


@pytest.mark.parametrize("error", [None, math.nan, math.inf])
def test_what_was_not_validated_is_never_the_best(network, error):
    best = BestWeights(network)
    best.offer(error, 0)
    assert best.epoch is None
    fill(network, 7.0)
    assert weights_in_use(best, network) == 7.0


def test_own_weights_come_back_after_an_interrupt(network):
    best = BestWeights(network)
    fill(network, 1.0)
    best.offer(1.0, 0)
    fill(network, 2.0)
    with pytest.raises(KeyboardInterrupt), best.in_use():
        raise KeyboardInterrupt
    assert float(network.weight[0, 0].detach()) == 2.0


def test_a_checkpoint_holds_the_best(network):
    best = BestWeights(network)
    fill(network, 1.0)
    best.offer(0.5, 4)
    fill(network, 2.0)
    again = BestWeights(network)
    again.restore(*best.to_checkpoint())
    assert again.epoch == 4
    assert weights_in_use(again, network) == 1.0
    assert not again.is_improved_by(0.5)
    assert again.is_improved_by(0.4)


def test_a_checkpoint_from_before_has_none(network):
    best = BestWeights(network)
    best.restore({}, None)
    assert best.epoch is None
    assert best.to_checkpoint() == ({}, None)
