"""What a recorded graph tells about the way from a batch to its loss."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import nn

from torchkiln import Options, training_model
from torchkiln.core import LossInputs

CAPTURE = Options(backend="capture", show_progress=False)
X, Y, MASK = torch.randn(6, 3), torch.randn(6, 1), torch.arange(6) < 4
LABELS = torch.arange(6) % 3


class Model(nn.Module):
    def __init__(self, loss, width=1):
        super().__init__()
        self.linear = nn.Linear(3, width)
        self.loss = loss

    def forward(self, x, y, mask):
        return self.loss(self.linear(x), y, mask)


def told(loss, y=Y, **options):
    module = Model(loss, width=3 if y is LABELS else 1)
    program = training_model(module, Options(backend="capture", show_progress=False, **options))
    program.compile(X, y, MASK)
    return program.metadata.loss_inputs


def in_place_in_a_view(out, y, mask):
    kept = torch.zeros_like(out)
    kept[:, 0].add_(out[:, 0] * mask)
    return F.mse_loss(kept, y)


REACHING = {
    "nowhere": (lambda out, y, mask: F.mse_loss(out, y), {0, 1}),
    "factor": (lambda out, y, mask: F.mse_loss(out * mask[:, None], y), {0, 1, 2}),
    "where": (lambda out, y, mask: F.mse_loss(torch.where(mask[:, None], out, y), y), {0, 1, 2}),
    "in place": (lambda out, y, mask: F.mse_loss(out.masked_fill(~mask[:, None], 0), y), {0, 1, 2}),
    "in place in a view": (in_place_in_a_view, {0, 1, 2}),
    "beside the loss": (lambda out, y, mask: (F.mse_loss(out, y), mask.sum()), {0, 1}),
}


@pytest.mark.parametrize("name", REACHING)
def test_inputs_that_the_loss_depends_on_are_found(name):
    loss, expected = REACHING[name]
    found = told(loss)
    assert found.reaching == expected
    assert found.functions == ("mse_loss",)


def test_accumulated_steps_are_read_alike():
    found = told(lambda out, y, mask: F.mse_loss(out[: out.shape[0]], y), gradient_accumulation=2)
    assert found.reaching == {0, 1}


def test_the_recorded_loss_is_no_output_of_the_program():
    program = training_model(Model(lambda out, y, mask: (out, F.mse_loss(out, y))), CAPTURE)
    outputs = program(X, Y, MASK)
    assert [tuple(output.shape) for output in outputs] == [(6, 1), ()]


CUTS = {
    "whole": (lambda out, y: F.mse_loss(out, y), {0, 1}),
    "both cut": (lambda out, y: F.mse_loss(out[:-2], y[:-2]), set()),
    "beginning cut": (lambda out, y: F.mse_loss(out[1:], y[1:]), {0, 1}),
    "fixed index": (lambda out, y: F.mse_loss(out[[0, 1]], y[[0, 1]]), set()),
    "only labels": (lambda out, y: F.mse_loss(out.sum() * y[:-1], y[:-1]), {0}),
    "columns": (lambda out, y: F.mse_loss(out[:, :1], y), {0, 1}),
}


@pytest.mark.parametrize("name", CUTS)
def test_rows_that_are_cut_off_are_found(name):
    loss, expected = CUTS[name]
    assert told(lambda out, y, mask: loss(out, y)).uncut == expected


def test_comparisons_of_inputs_alone_are_found():
    found = told(lambda out, y, mask: F.mse_loss(torch.where(y != 0, out, 0.0), y))
    assert found.compared == {1}
    found = told(lambda out, y, mask: F.mse_loss(torch.where(out > y, out, 0.0), y))
    assert found.compared == set()


def test_labels_are_found_with_the_class_that_is_ignored():
    found = told(lambda out, y, mask: F.cross_entropy(out, y), LABELS)
    assert found.ignored == ((1, -100),)
    found = told(lambda out, y, mask: F.cross_entropy(out, y.view(-1), ignore_index=2), LABELS)
    assert found.ignored == ((1, 2),)


def test_inference_has_no_loss_to_look_at():
    from torchkiln import inference_model

    program = inference_model(Model(lambda out, y, mask: F.mse_loss(out, y)), CAPTURE)
    program.compile(X, Y, MASK)
    assert program.metadata.loss_inputs is None


def test_what_was_told_survives_json():
    value = LossInputs(
        frozenset({3, 1}), frozenset({1}), frozenset({2}), ((1, -100),), ("mse_loss",)
    )
    assert LossInputs.from_json(value.to_json()) == value
