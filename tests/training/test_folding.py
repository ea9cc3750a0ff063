"""The order of mini-batches over several processes is that of one with all replicas."""

import pytest
import torch

from torchkiln import Options
from torchkiln.core import OptionsError
from torchkiln.training._folding import Folding
from torchkiln.training._notes import StepNotes
from torchkiln.training._task import BadLoss


def numbered(folding):
    """Return, by process, the number that each mini-batch has in the order of one process."""
    shape = (folding.updates, folding.accumulation, folding.ranks, folding.replicas)
    numbers = torch.arange(folding.updates * folding.per_update).reshape(shape)
    own = folding.own_per_update
    return numbers.transpose(1, 2).reshape(folding.updates, folding.ranks, own)


@pytest.mark.parametrize("sizes", [(1, 1, 2, 1), (2, 3, 2, 2), (3, 2, 4, 1), (2, 2, 1, 3)])
def test_joined_values_stand_in_the_order_of_one_process(sizes):
    folding = Folding(*sizes)
    by_rank = numbered(folding)
    assert folding.join(by_rank).tolist() == list(range(folding.updates * folding.per_update))
    for number in range(folding.updates * folding.per_update):
        rank, own = folding.owner(number)
        assert by_rank[:, rank].reshape(-1)[own] == number


def test_it_follows_from_options():
    options = Options(device_iterations=3, gradient_accumulation=2, replication_factor=4)
    assert Folding.of(options) == Folding(3, 2, 1, 4)
    assert Folding.of(options.replace(num_processes=5)) == Folding(3, 2, 5, 4)
    alone = options.replace(num_processes=5, sync_gradients=False)
    assert Folding.of(alone) == Folding(3, 2, 1, 4)


def test_notes_of_all_processes_become_losses_and_counts_in_order():
    folding = Folding(2, 2, 2, 1)
    by_rank = numbered(folding)
    rows = []
    for rank in range(2):
        notes = StepNotes(folding, lambda output: output["loss"])
        wishes = iter([False, rank == 1])
        notes.begin(10 * by_rank[:, rank].reshape(-1), lambda wishes=wishes: next(wishes))
        losses = by_rank[:, rank].float() + 0.5
        rows.append([notes.write([{"loss": one} for one in update]) for update in losses])
    told = torch.tensor(rows).transpose(0, 1)
    assert told.shape[2] == notes.size
    result = notes.read(told)
    assert result.losses.tolist() == [number + 0.5 for number in range(8)]
    assert result.counts.tolist() == [10 * number for number in range(8)]
    assert result.is_stop_wanted
    told[1, 1, 0] = 0.0
    assert not notes.read(told).is_stop_wanted


def test_a_loss_of_several_numbers_is_refused():
    notes = StepNotes(Folding(1, 1, 2, 1), lambda output: output)
    notes.begin(torch.tensor([3]), lambda: False)
    with pytest.raises(OptionsError, match="one number for each mini-batch, got 2"):
        notes.write([torch.zeros(2)])


def test_the_first_bad_loss_is_found_with_its_owner():
    folding = Folding(1, 2, 2, 1)
    assert BadLoss.find(torch.zeros(4), folding) is None
    bad = BadLoss.find(torch.tensor([0.0, 1.0, 2.0, float("nan")]), folding)
    assert (bad.number, bad.rank, bad.own_number) == (3, 1, 1)
