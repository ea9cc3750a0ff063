"""Notes of a program that trains alone."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import nn

from torchkiln import Anchor, Options, inference_model, training_model
from torchkiln.core import OptimizerError


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x, y):
        out = self.layer(x)
        return {"out": out, "loss": F.mse_loss(out, y)}


def loss_of_each(outputs):
    return [float(out["loss"]) for out in outputs]


@pytest.mark.parametrize("anchors", [{}, {"loss": Anchor("loss")}])
@pytest.mark.parametrize("backend", ["eager", "capture"])
@pytest.mark.parametrize(("iterations", "accumulation"), [(1, 1), (3, 1), (1, 4), (2, 3)])
def test_notes_are_written_for_every_update(iterations, accumulation, backend, anchors):
    module = Model()
    options = Options(
        device_iterations=iterations,
        gradient_accumulation=accumulation,
        output_mode="all",
        backend=backend,
        anchors=anchors,
        show_progress=False,
    )
    program = training_model(module, options)
    program.exchange_notes(accumulation, loss_of_each)
    count = iterations * accumulation
    losses = program(torch.randn(2 * count, 4), torch.randn(2 * count, 2))["loss"]
    assert program.notes.shape == (iterations, 1, accumulation)
    assert torch.equal(program.notes.flatten(), losses.detach().flatten())
    assert program.group is None
    assert program.collective_seconds == 0.0


def test_notes_are_those_of_the_latest_call():
    program = training_model(Model(), Options(backend="eager"))
    assert program.notes.shape == (0, 1, 0)
    counted = iter(range(10))
    program.exchange_notes(1, lambda outputs: [next(counted)])
    for expected in range(3):
        program(torch.ones(1, 4), torch.ones(1, 2))
        assert program.notes.tolist() == [[[float(expected)]]]


def test_what_is_undone_is_not_noted():
    program = training_model(Model(), Options(backend="eager"))
    program.exchange_notes(1, loss_of_each)
    program(torch.ones(1, 4), torch.ones(1, 2))
    noted = program.notes
    restore = program.executor.snapshot()
    program(torch.zeros(1, 4), torch.ones(1, 2))
    restore()
    assert torch.equal(program.notes, noted)


def test_inference_has_no_notes():
    program = inference_model(Model(), Options(backend="eager"))
    with pytest.raises(OptimizerError, match="use training_model"):
        program.exchange_notes(1, loss_of_each)
