import torch

from torchkiln.training._history import History
from torchkiln.training._notes import StepResult
from torchkiln.training._task import StepOutcome, Validation


def test_updates_of_filler_only_have_no_loss():
    history = History()
    result = StepResult(
        losses=torch.tensor([2.0, 0.0, 0.0, 0.0]), counts=torch.tensor([3, 0, 0, 0])
    )
    outcome = StepOutcome.weighted(result, per_update=2, own_samples=3)
    history.take(outcome, seconds=1.0)
    assert outcome.loss == 2.0
    assert history.updates == 2
    assert history.steps() == [(0, 2.0)]
    tensors, facts = history.to_checkpoint()
    assert History.from_checkpoint(tensors, facts).steps() == [(0, 2.0)]


def test_figures_and_totals_come_back():
    history = History()
    for value in (1.0, 2.0):
        outcome = StepOutcome(
            losses=torch.tensor([value]),
            update_losses=[value],
            loss_sum=value * 4,
            samples=4,
            own_samples=4,
            figures={"accuracy": value / 10},
            totals={"counts": torch.tensor([1, 2])},
        )
        history.take(outcome, seconds=0.5)
    again = History.from_checkpoint(*history.to_checkpoint())
    assert again.series == {"accuracy": [0.1, 0.2]}
    assert again.totals["counts"].tolist() == [2, 4]
    record = again.record(0.1, Validation(loss=3.0, figures={"held_out": 0.5}))
    assert (record.loss, record.samples, record.samples_per_s) == (1.5, 8, 8.0)
    again.finish_epoch(record)
    assert again.totals == {}
    last = History.from_checkpoint(*again.to_checkpoint())
    assert last.epochs == [record]
    assert last.epoch == 1
