"""Buffers, attributes and parameters in every state a module can bring them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from _models import MLP, labels, vectors
from _parity import assert_like_eager
from torch import nn

from torchkiln.core import ExecutableError
from torchkiln.runtime import inference_model, training_model


class Counting(nn.Module):
    """Writes to one buffer in place and replaces another."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.register_buffer("in_place", torch.zeros(3))
        self.register_buffer("replaced", torch.zeros(()))
        self.register_buffer("untouched", torch.ones(2))

    def forward(self, x, y):
        out = self.layer(x)
        self.in_place.mul_(0.5).add_(out.detach().mean(0))
        self.replaced = self.replaced + self.in_place.sum()
        return self.in_place, self.replaced, F.cross_entropy(out + self.replaced, y)


def test_buffers_written_in_place_and_reassigned_are_current(options):
    module = Counting()
    buffer = module.replaced
    program = assert_like_eager(module, vectors(), labels(), options=options)
    assert module.replaced is buffer
    if options.backend.value != "eager":
        assert program.reassigned_buffers == ["replaced"]


def test_value_before_a_reassignment_is_what_backward_and_outputs_see(options):
    class Replacing(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(6))
            self.register_buffer("scale", torch.full((6,), 2.0))

        def forward(self, x):
            before = self.scale
            out = x * (self.weight * self.scale).exp()
            self.scale = self.scale * 0.5
            return before, self.scale, F.mse_loss(out, torch.zeros_like(out))

    assert_like_eager(Replacing(), vectors() / 10, options=options)


def test_two_buffers_that_forward_swaps(options):
    class Swapping(MLP):
        def __init__(self):
            super().__init__()
            self.register_buffer("one", torch.tensor([1.0]))
            self.register_buffer("two", torch.tensor([2.0]))

        def forward(self, x, y):
            self.one, self.two = self.two, self.one
            return self.one, super().forward(x, y)

    assert_like_eager(Swapping(), vectors(), labels(), options=options)


def test_buffers_are_updated_once_per_micro_batch(options):
    module = nn.BatchNorm1d(6)

    class Norm(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = module

        def forward(self, x):
            return F.mse_loss(self.norm(x), x)

    program = training_model(
        Norm(), options.replace(device_iterations=2, replication_factor=2, gradient_accumulation=2)
    )
    program(vectors(32))
    assert module.num_batches_tracked == 8


def test_frozen_and_unused_parameters_stay(options):
    class Partly(MLP):
        def __init__(self):
            super().__init__()
            self.unused = nn.Linear(2, 2)
            self.layers[0].weight.requires_grad_(False)

    module = Partly()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    program = assert_like_eager(
        module,
        vectors(),
        labels(),
        options=options,
        make_optimizer=lambda p: torch.optim.Adam(p, lr=0.1, weight_decay=0.1),
    )
    for name in ("unused.weight", "unused.bias", "layers.0.weight"):
        assert torch.equal(module.state_dict()[name], before[name])
    state = program.optimizer.state
    assert module.unused.weight not in state
    assert module.layers[0].weight not in state
    assert set(state[module.layers[0].bias]) == {"step", "exp_avg", "exp_avg_sq"}


def test_only_parameters_of_the_optimizer_are_updated(options):
    module = MLP()
    before = module.layers[0].weight.clone()
    assert_like_eager(
        module,
        vectors(),
        labels(),
        options=options,
        make_optimizer=lambda p: torch.optim.SGD(list(p)[1:], lr=0.1),
    )
    assert torch.equal(module.layers[0].weight, before)


def test_plain_tensor_attributes_are_constants(options):
    class Attributes(MLP):
        def __init__(self):
            super().__init__()
            self.scale = torch.tensor(2.0)
            self.table = [torch.tensor(1.0), {"deep": torch.tensor(3.0)}]
            self.counter = torch.zeros(())

        def forward(self, x, y):
            self.counter += 1
            out = self.layers(x) * self.scale + self.table[0] + self.table[1]["deep"]
            return self.counter.clone(), F.cross_entropy(out, y)

    module = Attributes()
    counter = module.counter
    program = training_model(module, options)
    first = program(vectors(), labels())[0]
    second = program(vectors(), labels())[0]
    assert (first, second) == (1, 1)
    assert module.counter is counter
    assert counter == 0
    out = (module.layers(vectors()) * 2 + 4).detach()
    torch.testing.assert_close(program(vectors(), labels())[1], F.cross_entropy(out, labels()))


def test_tensors_that_forward_leaves_in_attributes_do_not_stay(options):
    class Remembering(MLP):
        def forward(self, x, y):
            self.latest = self.layers(x)
            self.history = [self.latest]
            self.count = getattr(self, "count", 0) + 1
            return F.cross_entropy(self.latest, y)

    module = Remembering()
    training_model(module, options)(vectors(), labels())
    assert not hasattr(module, "latest")
    assert not hasattr(module, "history")
    assert module.count == 1


def test_weights_replaced_by_the_user_are_used_without_recompiling(options):
    module = MLP()
    program = training_model(module, options, torch.optim.Adam(module.parameters(), lr=0.01))
    program(vectors(), labels())
    other = MLP()
    module.load_state_dict(other.state_dict())
    torch.testing.assert_close(
        program(vectors(), labels())[1], other(vectors(), labels())[1].detach()
    )
    module.layers[0].weight.data = torch.zeros(8, 6)
    expected = module(vectors(), labels())[1].detach()
    torch.testing.assert_close(program(vectors(), labels())[1], expected)
    assert program.num_compiles <= 1


def test_another_parameter_object_is_followed_by_inference_only(options):
    module = MLP()
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
    training = training_model(module, options, optimizer)
    inference = inference_model(module, options)
    training(vectors(), labels())
    inference(vectors(), labels())
    module.layers[2].bias = nn.Parameter(torch.tensor([5.0, 0.0, 0.0]))
    expected = module(vectors(), labels())[1].detach()
    torch.testing.assert_close(inference(vectors(), labels())[1], expected)
    # The optimiser holds the old object: plain PyTorch would go on training that one, unseen.
    with pytest.raises(ExecutableError, match="assign=False"):
        training(vectors(), labels())


def test_non_contiguous_parameter_is_updated_in_place(options):
    class Transposed(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(6, 3).t())

        def forward(self, x, y):
            return F.cross_entropy(x @ self.weight.t(), y)

    module = Transposed()
    assert_like_eager(module, vectors(), labels(), options=options, make_optimizer=torch.optim.Adam)
    assert module.weight.stride() == (1, 3)


def test_parameters_that_are_neighbours_in_one_block_of_memory(options):
    class Flat(nn.Module):
        def __init__(self):
            super().__init__()
            block = torch.randn(18 + 3)
            self.weight = nn.Parameter(block[:18].view(3, 6))
            self.bias = nn.Parameter(block[18:])

        def forward(self, x, y):
            return F.cross_entropy(F.linear(x, self.weight, self.bias), y)

    assert_like_eager(Flat(), vectors(), labels(), options=options)
