"""Randomness and autograd inside forward."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from _models import MLP, labels, vectors
from _parity import assert_like_eager
from torch import nn
from torch.utils.checkpoint import checkpoint

from torchkiln.runtime import identity_loss, inference_model, is_inside_program, training_model

# -- randomness ------------------------------------------------------------------------------------


class Noisy(nn.Module):
    """Every way of drawing numbers that models use."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.attention = nn.MultiheadAttention(6, 2, dropout=0.2, batch_first=True)

    def forward(self, x):
        x = F.dropout(self.layer(x), 0.2)
        x = F.dropout(x[torch.randperm(x.shape[0])], 0.4)
        x = x + torch.randn_like(x) + torch.rand(6) + torch.randint(0, 3, (6,))
        x = x + F.gumbel_softmax(x) * torch.bernoulli(torch.full_like(x, 0.5))
        x = x + torch.empty(6).uniform_(-1, 1) + torch.normal(0.0, 1.0, (6,))
        out = F.alpha_dropout(self.attention(x[None], x[None], x[None])[0], 0.1, self.training)
        return x, out.square().mean(), F.mse_loss(out, torch.zeros_like(out))


def test_random_operations_draw_the_stream_of_eager_pytorch(options):
    assert_like_eager(Noisy(), vectors(), options=options)


def test_compiling_does_not_touch_the_random_stream(options):
    torch.manual_seed(3)
    program = training_model(Noisy(), options)
    before = torch.get_rng_state()
    program.compile(vectors())
    assert torch.equal(torch.get_rng_state(), before)


def test_random_seed_option_seeds_the_generator(options):
    programs = [inference_model(Noisy(), options.replace(random_seed=9)) for _ in range(2)]
    programs[1].module.load_state_dict(programs[0].module.state_dict())
    first = [programs[0](vectors())[0]]
    inference_model(Noisy(), options.replace(random_seed=9))
    assert torch.equal(first[0], programs[1](vectors())[0])


# -- autograd --------------------------------------------------------------------------------------


class Checkpointed(MLP):
    def forward(self, x, y):
        def block(value):
            return F.dropout(self.layers[0](F.dropout(value, 0.3)).tanh(), 0.5)

        hidden = checkpoint(block, x, use_reentrant=False)
        out = F.dropout(self.layers[2](hidden), 0.2)
        return out, F.cross_entropy(out, y)


def test_checkpointed_block_recomputes_with_the_same_dropout(options):
    assert_like_eager(Checkpointed(), vectors(), labels(), options=options)


def test_checkpointed_block_runs_again_with_the_weights_and_buffers_of_the_step(options):
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(6, 6, bias=False), nn.BatchNorm1d(6), nn.Tanh())

        def forward(self, x):
            out = checkpoint(self.body, x, use_reentrant=False)
            return F.mse_loss(out, x)

    module = Checkpointed()
    program = training_model(module, options)
    program.compile(vectors())
    assert module.body[1].num_batches_tracked == 0
    assert_like_eager(Checkpointed(), vectors(), options=options)
    if options.backend.value == "capture":
        # Weights that were baked in as constants would show up here.
        graph = program._built.executable._graphs["step"]
        assert not [node for node in graph.graph.nodes if node.op == "get_attr"]


def test_forces_by_autograd_grad_inside_forward(options):
    class Forces(nn.Module):
        def __init__(self):
            super().__init__()
            self.energy = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))

        def forward(self, x, target):
            x.requires_grad_(True)
            energy = self.energy(x)
            (forces,) = torch.autograd.grad(energy.sum(), x, create_graph=True)
            return energy, forces, F.mse_loss(forces, target)

    x = vectors()
    program = training_model(Forces(), options)
    program(x, torch.ones(4, 6))
    program(x, torch.ones(4, 6))
    assert not x.requires_grad

    class Detached(Forces):
        def forward(self, x, target):
            return super().forward(x.detach().clone(), target)

    assert_like_eager(Detached(), vectors(), torch.ones(4, 6), options=options)


def test_custom_autograd_function(options):
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.clamp(min=0)

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return 2 * grad * (x > 0)

    class Custom(MLP):
        def forward(self, x, y):
            out = Double.apply(self.layers(x))
            return out, F.cross_entropy(out, y)

    assert_like_eager(Custom(), vectors(), labels(), options=options)


def test_function_transforms_inside_forward(options):
    class Transforms(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 1))

        def forward(self, x):
            slope = torch.vmap(torch.func.grad(lambda row: self.net(row).sum()))(x)
            return slope, F.mse_loss(slope, torch.zeros_like(slope))

    assert_like_eager(Transforms(), vectors(), options=options)


def test_hooks_on_modules_and_tensors_count(options):
    class Hooked(MLP):
        def __init__(self):
            super().__init__()
            self.layers[0].register_forward_hook(lambda module, args, out: out * 2)
            self.layers[2].register_forward_pre_hook(lambda module, args: (args[0] + 1,))
            self.register_forward_hook(lambda module, args, out: (out[0] + 1, out[1]))

        def forward(self, x, y):
            hidden = self.layers[1](self.layers[0](x))
            if hidden.requires_grad:
                hidden.register_hook(lambda grad: grad * 3)
            out = self.layers[2](hidden)
            return out, F.cross_entropy(out, y)

    assert_like_eager(Hooked(), vectors(), labels(), options=options)


def test_no_grad_and_detach_inside_forward(options):
    class Stopped(MLP):
        def forward(self, x, y):
            with torch.no_grad():
                target = self.layers(x).softmax(-1)
            out = self.layers(x)
            return out.detach(), F.cross_entropy(out, target) + F.cross_entropy(out, y)

    class Marked(Stopped):
        def forward(self, x, y):
            out, loss = super().forward(x, y)
            return out, identity_loss(loss, "none")

    assert_like_eager(Marked(), vectors(), labels(), options=options)


def test_caller_may_be_inside_no_grad(options):
    module = MLP()
    before = module.layers[0].weight.clone()
    with torch.no_grad():
        training_model(module, options)(vectors(), labels())
    assert not torch.equal(before, module.layers[0].weight)


@pytest.mark.parametrize("make", [training_model, inference_model])
def test_caller_may_be_inside_inference_mode(make, options):
    module = MLP()
    expected = module(vectors(), labels())[0].detach()
    program = make(module, options)
    with torch.inference_mode():
        first = program(vectors(), labels())[0]
    torch.testing.assert_close(first, expected)
    assert not first.is_inference()
    # What was made inside must work outside, on tensors from inside.
    with torch.inference_mode():
        inputs = vectors() + 0
    program(inputs, labels())
    copy.deepcopy(module.state_dict())


def test_is_inside_program_only_inside_forward(options):
    seen = []

    class Asking(MLP):
        def forward(self, x, y):
            seen.append(is_inside_program())
            return super().forward(x, y)

    program = training_model(Asking(), options)
    program(vectors(), labels())
    assert seen == [True]
    assert not is_inside_program()


def test_parameters_get_no_grad_attribute(options):
    module = MLP()
    training_model(module, options)(vectors(), labels())
    assert all(param.grad is None for param in module.parameters())
