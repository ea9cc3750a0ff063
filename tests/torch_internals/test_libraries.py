"""Functions of torch that have no public name, as Torchkiln relies on them."""

import contextlib

import pytest
import torch
from torch.distributions import Distribution, Normal
from torch.utils.checkpoint import checkpoint, noop_context_fn

from torchkiln.torch_internals._libraries import (
    checkpoint_contexts_replaced,
    checks_arguments,
    ctc_backward,
    ctc_forward,
)


def test_the_ctc_loss_and_its_gradient_from_the_table_of_forward_variables():
    torch.manual_seed(0)
    log_probs = torch.randn(6, 2, 4).log_softmax(2).requires_grad_()
    targets = torch.tensor([[1, 2, 3], [3, 1, 0]])
    lengths = torch.tensor([6, 5]), torch.tensor([3, 2])
    loss = torch.nn.functional.ctc_loss(log_probs, targets, *lengths, reduction="none")
    loss.sum().backward()
    with torch.no_grad():
        nll, table = ctc_forward(log_probs, targets, *lengths, 0, False)
        ones = torch.ones(2)
        grad = ctc_backward(ones, log_probs, targets, *lengths, nll, table, 0, False)
    assert torch.equal(nll, loss)
    assert torch.equal(grad, log_probs.grad)


def test_distributions_say_whether_they_check_their_arguments():
    before = checks_arguments(Distribution)
    try:
        Distribution.set_default_validate_args(False)
        assert not checks_arguments(Distribution)
        Normal(torch.tensor(0.0), torch.tensor(-1.0))
        Distribution.set_default_validate_args(True)
        assert checks_arguments(Distribution)
        with pytest.raises(ValueError, match="scale"):
            Normal(torch.tensor(0.0), torch.tensor(-1.0))
    finally:
        Distribution.set_default_validate_args(before)


def run_checkpointed(**settings):
    x = torch.ones(2, requires_grad=True)
    checkpoint(torch.sin, x, use_reentrant=False, **settings).sum().backward()


def test_the_contexts_of_a_checkpointed_block_can_be_replaced():
    entered, given = [], []

    @contextlib.contextmanager
    def noted(name):
        entered.append(name)
        yield

    def replace(context_fn):
        given.append(context_fn)
        return lambda: (noted("forward"), noted("again"))

    with checkpoint_contexts_replaced(replace):
        run_checkpointed()
        assert entered == ["forward", "again"]
        assert given == [noop_context_fn]
        run_checkpointed(preserve_rng_state=False)
    run_checkpointed()
    assert len(given) == 1
