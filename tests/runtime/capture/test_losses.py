"""Which of forward's results is differentiated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import Tensor, nn

from torchkiln.core import MultipleLossesError, NoLossError, Options
from torchkiln.runtime import identity_loss, training_model

LR = 0.5


class Net(nn.Module):
    """A linear layer; what is returned is up to the test."""

    def __init__(self, finish: Callable[[Tensor, Tensor], Any]):
        super().__init__()
        self.layer = nn.Linear(3, 4)
        self.finish = finish

    def forward(self, x: Tensor, y: Tensor) -> Any:
        return self.finish(self.layer(x), y)


def batch() -> tuple[Tensor, Tensor]:
    return torch.arange(6.0).view(2, 3) / 6, torch.tensor([1, 3])


def assert_trains_on(
    finish: Callable[[Tensor, Tensor], Any],
    expected: Callable[[Tensor, Tensor], Tensor],
    options: Options,
) -> Any:
    """One step of `finish` must be one step of plain SGD on `expected`."""
    module = Net(finish)
    weight = module.layer.weight.detach().clone().requires_grad_()
    bias = module.layer.bias.detach().clone()
    x, y = batch()
    (grad,) = torch.autograd.grad(expected(F.linear(x, weight, bias), y), weight)
    program = training_model(module, options, torch.optim.SGD(module.parameters(), lr=LR))
    result = program(x, y)
    torch.testing.assert_close(module.layer.weight.detach(), (weight - LR * grad).detach())
    return result


def fails(finish: Callable[[Tensor, Tensor], Any], options: Options) -> None:
    module = Net(finish)
    training_model(module, options)(*batch())


POSITIONS = {
    "alone": lambda out, loss: loss,
    "first": lambda out, loss: (loss, out),
    "last": lambda out, loss: (out, out.argmax(-1), loss),
    "list": lambda out, loss: [out, loss],
    "dict": lambda out, loss: {"loss": loss, "out": out},
    "nested": lambda out, loss: {"deep": [out, ({"loss": (loss,)}, None)], "n": 3},
    "twice": lambda out, loss: (loss, loss),
    "with scalar metrics": lambda out, loss: (out.mean(), loss, out.argmax(-1).sum()),
}


@pytest.mark.parametrize("position", POSITIONS)
def test_loss_is_found_in_any_position(position, options):
    arrange = POSITIONS[position]
    assert_trains_on(lambda out, y: arrange(out, F.cross_entropy(out, y)), F.cross_entropy, options)


one_hot = lambda y: F.one_hot(y, 4).float()  # noqa: E731 - a table entry's helper
signs = lambda y: one_hot(y) * 2 - 1  # noqa: E731
LOSSES = {
    "l1": lambda out, y: F.l1_loss(out, one_hot(y)),
    "mse": lambda out, y: F.mse_loss(out, one_hot(y)),
    "cross_entropy": lambda out, y: F.cross_entropy(out, y, label_smoothing=0.1),
    "nll": lambda out, y: F.nll_loss(out.log_softmax(-1), y),
    "bce": lambda out, y: F.binary_cross_entropy(out.sigmoid(), one_hot(y)),
    "bce_logits": lambda out, y: F.binary_cross_entropy_with_logits(out, one_hot(y)),
    "kl": lambda out, y: F.kl_div(out.log_softmax(-1), one_hot(y), reduction="batchmean"),
    "poisson": lambda out, y: F.poisson_nll_loss(out, one_hot(y)),
    "hinge": lambda out, y: F.hinge_embedding_loss(out, signs(y)),
    "smooth_l1": lambda out, y: F.smooth_l1_loss(out, one_hot(y)),
    "huber": lambda out, y: F.huber_loss(out, one_hot(y)),
    "soft_margin": lambda out, y: F.soft_margin_loss(out, signs(y)),
    "cosine": lambda out, y: F.cosine_embedding_loss(out, one_hot(y), torch.tensor([1.0, -1.0])),
    "ranking": lambda out, y: F.margin_ranking_loss(out[:, 0], out[:, 1], torch.tensor([1.0, -1])),
    "triplet": lambda out, y: F.triplet_margin_loss(out, one_hot(y), one_hot(y).roll(1, -1)),
    "multilabel_soft": lambda out, y: F.multilabel_soft_margin_loss(out, one_hot(y)),
    "gaussian": lambda out, y: F.gaussian_nll_loss(out, one_hot(y), torch.ones(2, 4)),
    "multi_margin": lambda out, y: F.multi_margin_loss(out, y),
    "module": lambda out, y: nn.CrossEntropyLoss(reduction="sum")(out, y),
    "identity_sum": lambda out, y: identity_loss(out.square(), "sum"),
    "identity_mean": lambda out, y: identity_loss(out.square(), "mean"),
    "identity_none": lambda out, y: identity_loss(out.square().sum(), "none"),
}


@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_function_is_recognised(name, options):
    assert_trains_on(lambda out, y: (out, LOSSES[name](out, y)), LOSSES[name], options)


def test_vector_loss_is_summed(options):
    _, loss = assert_trains_on(
        lambda out, y: (out, F.cross_entropy(out, y, reduction="none")),
        lambda out, y: F.cross_entropy(out, y, reduction="sum"),
        options,
    )
    assert loss.shape == (2,)


def test_what_comes_after_a_torch_loss_counts(options):
    assert_trains_on(
        lambda out, y: (out, F.cross_entropy(out, y, reduction="sum") / 7 + out.square().mean()),
        lambda out, y: F.cross_entropy(out, y, reduction="sum") / 7 + out.square().mean(),
        options,
    )


def test_loss_that_feeds_another_loss_is_an_ordinary_value(options):
    def finish(out: Tensor, y: Tensor) -> Tensor:
        first = F.cross_entropy(out, y)
        return F.mse_loss(first, torch.tensor(2.0))

    assert_trains_on(finish, finish, options)


def test_combined_losses_need_one_mark(options):
    def combined(out: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(out, y) + 5 * F.mse_loss(out, one_hot(y))

    with pytest.raises(MultipleLossesError, match=r"Multiple independent losses.*identity_loss"):
        fails(combined, options)
    assert_trains_on(lambda out, y: identity_loss(combined(out, y), "none"), combined, options)


def test_explicit_mark_beats_metrics_computed_with_loss_functions(options):
    def finish(out: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return F.l1_loss(out, one_hot(y)), identity_loss(out.square().sum(), "none"), out

    assert_trains_on(finish, lambda out, y: out.square().sum(), options)


def test_metric_that_is_detached_is_no_loss(options):
    def finish(out: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return F.l1_loss(out.detach(), one_hot(y)), F.cross_entropy(out, y)

    assert_trains_on(finish, F.cross_entropy, options)


def test_loss_that_is_computed_but_not_returned_is_ignored_beside_another(options):
    def finish(out: Tensor, y: Tensor) -> Tensor:
        F.l1_loss(out, one_hot(y))
        return F.cross_entropy(out, y)

    assert_trains_on(finish, F.cross_entropy, options)


NO_LOSS = {
    "none": (lambda out, y: out.square().mean(), "identity_loss"),
    "tuple": (lambda out, y: (out, out.sum()), "identity_loss"),
    "not returned": (lambda out, y: (F.cross_entropy(out, y), out)[1], "return the loss"),
    "detached": (lambda out, y: F.cross_entropy(out, y).detach(), "return"),
    "marked, not returned": (lambda out, y: (identity_loss(out, "sum"), out)[1], "return it"),
    "marked, detached": (lambda out, y: identity_loss(out, "sum").detach(), "return it"),
    "number": (lambda out, y: 3.0, "identity_loss"),
    "nothing": (lambda out, y: None, "identity_loss"),
}


@pytest.mark.parametrize("name", NO_LOSS)
def test_missing_loss_is_an_error_with_the_remedy(name, options):
    finish, remedy = NO_LOSS[name]
    with pytest.raises(NoLossError, match=f"(?s)Couldn't find a loss in graph.*{remedy}"):
        fails(finish, options)


SEVERAL = {
    "two losses": lambda out, y: (F.cross_entropy(out, y), F.l1_loss(out, one_hot(y))),
    "two marks": lambda out, y: (identity_loss(out, "sum"), identity_loss(out * 2, "sum")),
    "sum of two": lambda out, y: F.nll_loss(out, y) + 5 * F.nll_loss(out, y),
    "two scalars from one": lambda out, y: ((loss := F.cross_entropy(out, y)) * 2, loss * 3),
}


@pytest.mark.parametrize("name", SEVERAL)
def test_several_losses_are_an_error_with_the_remedy(name, options):
    with pytest.raises(
        MultipleLossesError, match=r"(?s)Multiple independent losses.*identity_loss"
    ):
        fails(SEVERAL[name], options)


def detached_sum(out: Tensor, y: Tensor) -> Tensor:
    return identity_loss(out.detach(), "sum")


def detached_quotient(out: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return out, F.cross_entropy(out.detach(), y) / 2


@pytest.mark.parametrize("finish", [detached_sum, detached_quotient])
def test_a_loss_without_gradients_runs_and_updates_nothing_with_one_warning(finish, options):
    net = Net(finish)
    before = [param.detach().clone() for param in net.parameters()]
    program = training_model(net, options)
    with pytest.warns(UserWarning, match="nothing is trained") as caught:
        got = [program(*batch()) for _ in range(3)]
    assert len(caught) == 1
    torch.testing.assert_close(got[2], net(*batch()))
    assert all(map(torch.equal, before, net.parameters()))


def test_a_part_in_eval_mode_that_computes_without_gradients_runs(options):
    class Part(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            with torch.set_grad_enabled(self.training):
                return super().forward(x)

    net = Net(F.cross_entropy)
    net.layer = Part(3, 4).eval()
    before = net.layer.weight.detach().clone()
    with pytest.warns(UserWarning, match="nothing is trained"):
        loss = training_model(net, options)(*batch())
    torch.testing.assert_close(loss, net(*batch()))
    assert torch.equal(net.layer.weight, before)


def test_unknown_reduction_is_an_error():
    with pytest.raises(ValueError, match="'sum', 'mean' or 'none', got 'max'"):
        identity_loss(torch.ones(2), "max")


def test_identity_loss_outside_a_program_only_reduces():
    assert identity_loss(torch.tensor([1.0, 3.0]), "mean") == 2


def test_inference_needs_no_loss(options):
    from torchkiln.runtime import inference_model

    out = inference_model(Net(lambda out, y: out), options)(*batch())
    assert out.shape == (2, 4)
