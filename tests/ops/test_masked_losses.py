"""Masked losses are torch's losses of the real rows: values, gradients, weights, any filler."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit

from torchkiln import Options, training_model
from torchkiln.core import ArgumentError, OptionsError
from torchkiln.ops import (
    masked_binary_cross_entropy_with_logits,
    masked_cross_entropy,
    masked_huber_loss,
    masked_l1_loss,
    masked_mean,
    masked_mse_loss,
    masked_smooth_l1_loss,
)

ROWS, CLASSES = 9, 4
# Real rows need not be the first ones.
MASK = torch.tensor([True, True, False, True, True, False, True, False, False])
FILLERS = [0.0, 1e30, float("nan"), float("inf")]

REGRESSION = {
    "mse": (masked_mse_loss, F.mse_loss, {}),
    "l1": (masked_l1_loss, F.l1_loss, {}),
    "huber": (masked_huber_loss, F.huber_loss, {"delta": 0.3}),
    "smooth_l1": (masked_smooth_l1_loss, F.smooth_l1_loss, {"beta": 0.2}),
}


def assert_parity(masked, torchs, values, filler, *, rows=None, **settings):
    """Compare value and gradient; `rows` are arguments that are given row by row."""
    inputs = torch.where(spread(values), values, filler).requires_grad_()
    plain = values[MASK].clone().requires_grad_()
    rows = rows or {}
    got = masked(inputs, *rows.values(), MASK, **settings)
    expected = torchs(plain, *[v[MASK] for v in rows.values()], **settings)
    torch.testing.assert_close(got, expected)
    (grad,) = torch.autograd.grad(got.sum(), inputs)
    (wanted,) = torch.autograd.grad(expected.sum(), plain)
    torch.testing.assert_close(grad[MASK], wanted)
    assert (grad[~MASK] == 0).all()


def spread(values):
    return MASK.reshape(-1, *[1] * (values.dim() - 1)).expand_as(values)


@pytest.mark.parametrize("filler", FILLERS)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("shape", [(ROWS,), (ROWS, 1), (ROWS, 3, 2)])
@pytest.mark.parametrize("name", REGRESSION)
def test_regression_losses_are_those_of_the_real_rows(name, shape, reduction, filler):
    masked, torchs, settings = REGRESSION[name]
    target = torch.where(spread(torch.empty(shape)), torch.randn(shape), filler)
    assert_parity(
        masked,
        torchs,
        torch.randn(shape),
        filler,
        rows={"target": target},
        reduction=reduction,
        **settings,
    )


@pytest.mark.parametrize("filler", FILLERS)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("label", [0, -100, 77])
def test_cross_entropy_is_that_of_the_real_rows(label, weighted, smoothing, reduction, filler):
    target = torch.where(MASK, torch.arange(ROWS) % CLASSES, label)
    assert_parity(
        masked_cross_entropy,
        F.cross_entropy,
        torch.randn(ROWS, CLASSES),
        filler,
        rows={"target": target},
        weight=torch.rand(CLASSES) + 0.1 if weighted else None,
        label_smoothing=smoothing,
        reduction=reduction,
    )


def test_cross_entropy_ignores_a_class_among_the_real_rows():
    target = torch.arange(ROWS) % CLASSES
    for weight in (None, torch.rand(CLASSES) + 0.1):
        assert_parity(
            masked_cross_entropy,
            F.cross_entropy,
            torch.randn(ROWS, CLASSES),
            0.0,
            rows={"target": target},
            weight=weight,
            ignore_index=1,
            label_smoothing=0.1,
        )


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_cross_entropy_takes_probabilities(reduction, weighted):
    assert_parity(
        masked_cross_entropy,
        F.cross_entropy,
        torch.randn(ROWS, CLASSES),
        float("nan"),
        rows={"target": torch.rand(ROWS, CLASSES).softmax(1)},
        weight=torch.rand(CLASSES) + 0.1 if weighted else None,
        label_smoothing=0.1,
        reduction=reduction,
    )


def test_cross_entropy_takes_images_of_classes():
    assert_parity(
        masked_cross_entropy,
        F.cross_entropy,
        torch.randn(ROWS, CLASSES, 5),
        float("nan"),
        rows={"target": torch.randint(CLASSES, (ROWS, 5))},
        weight=torch.rand(CLASSES),
    )


@pytest.mark.parametrize("filler", FILLERS)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_binary_cross_entropy_is_that_of_the_real_rows(reduction, filler):
    values, target = torch.randn(ROWS, 3), torch.randint(2, (ROWS, 3)).float()
    target[~MASK] = filler
    assert_parity(
        masked_binary_cross_entropy_with_logits,
        F.binary_cross_entropy_with_logits,
        values,
        filler,
        rows={"target": target},
        weight=torch.rand(3),
        pos_weight=torch.rand(3),
        reduction=reduction,
    )


def test_weights_of_filler_rows_may_be_anything():
    weight = torch.where(MASK, torch.rand(ROWS), float("nan"))
    values, target = torch.randn(ROWS, requires_grad=True), torch.rand(ROWS)
    got = masked_binary_cross_entropy_with_logits(values, target, MASK, weight=weight)
    expected = F.binary_cross_entropy_with_logits(values[MASK], target[MASK], weight[MASK])
    torch.testing.assert_close(got, expected)
    assert torch.autograd.grad(got, values)[0].isfinite().all()


def test_the_mean_is_that_of_the_real_rows():
    values = torch.randn(ROWS, 3)
    assert_parity(masked_mean, lambda x: x.mean(), values, float("nan"))


EVERY = [
    lambda x, mask: masked_mse_loss(x, x.detach() + 1, mask),
    lambda x, mask: masked_cross_entropy(x, torch.zeros(ROWS, dtype=torch.int64), mask),
    lambda x, mask: masked_cross_entropy(
        x, torch.zeros(ROWS, dtype=torch.int64), mask, weight=torch.rand(CLASSES)
    ),
    lambda x, mask: masked_binary_cross_entropy_with_logits(x, torch.ones_like(x), mask),
    masked_mean,
]


@pytest.mark.parametrize("loss", EVERY)
def test_without_a_real_row_the_loss_and_its_gradients_are_zero(loss):
    values = torch.full((ROWS, CLASSES), float("nan"), requires_grad=True)
    got = loss(values, torch.zeros(ROWS, dtype=torch.bool))
    assert got.item() == 0
    assert (torch.autograd.grad(got, values)[0] == 0).all()


def test_no_reduction_keeps_rows_and_is_zero_for_filler():
    values, target = torch.randn(ROWS, 3), torch.randn(ROWS, 3)
    got = masked_mse_loss(values, target, MASK, reduction="none")
    torch.testing.assert_close(got[MASK], (values - target).square()[MASK])
    assert (got[~MASK] == 0).all()
    labels = torch.zeros(ROWS, dtype=torch.int64)
    entropies = masked_cross_entropy(values, labels, MASK, reduction="none")
    assert entropies.shape == (ROWS,)
    assert (entropies[~MASK] == 0).all()


def test_halves_do_not_overflow():
    values = torch.full((4000, 50), 30.0, dtype=torch.float16)
    mask = torch.ones(4000, dtype=torch.bool)
    got = masked_mse_loss(values, torch.zeros_like(values), mask)
    assert got.dtype is torch.float16
    assert got.item() == 900


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((torch.zeros(9, 1), torch.zeros(9), MASK), "predictions have shape"),
        ((torch.zeros(9), torch.zeros(9), MASK[:5]), "a mask of shape"),
        ((torch.zeros(9), torch.zeros(9), MASK.float()), "torch.bool"),
    ],
)
def test_what_does_not_fit_is_refused(arguments, words):
    with pytest.raises(ArgumentError, match=words):
        masked_mse_loss(*arguments)


def test_wrong_labels_and_reductions_are_refused():
    with pytest.raises(ArgumentError, match="integer classes"):
        masked_cross_entropy(torch.zeros(9, 4), torch.zeros(9, 1, dtype=torch.int64), MASK)
    with pytest.raises(ArgumentError, match="rows, classes"):
        masked_cross_entropy(torch.zeros(9), torch.zeros(9, dtype=torch.int64), MASK)
    with pytest.raises(OptionsError, match="'mean'"):
        masked_mse_loss(torch.zeros(9), torch.zeros(9), MASK, reduction="average")


class Classifier(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, CLASSES)

    def forward(self, x, y, mask):
        out = self.linear(x)
        return masked_cross_entropy(out, y, mask, label_smoothing=0.1)


@pytest.mark.parametrize(
    "backend", ["eager", "capture", pytest.param("inductor", marks=pytest.mark.inductor)]
)
def test_a_program_trains_on_the_real_rows(backend, cache_dir):
    x, y = torch.randn(ROWS, 3), torch.randint(CLASSES, (ROWS,))
    x[~MASK], y[~MASK] = 1e20, -1
    torch.manual_seed(0)
    plain, module = Classifier(), Classifier()
    module.load_state_dict(plain.state_dict())
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    options = Options(backend=backend, show_progress=False, cache_dir=cache_dir)
    program = training_model(module, options, torch.optim.SGD(module.parameters(), lr=0.1))
    for _ in range(3):
        expected = F.cross_entropy(plain.linear(x[MASK]), y[MASK], label_smoothing=0.1)
        optimizer.zero_grad()
        expected.backward()
        optimizer.step()
        torch.testing.assert_close(program(x, y, MASK), expected)
    torch.testing.assert_close(dict(module.state_dict()), dict(plain.state_dict()))
