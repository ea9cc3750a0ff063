"""Native code for what compilers got wrong before: few programs, many cases each.

The same modules run with `capture` too, where they cost nothing; `test_corner_cases.py` has each
case alone.
"""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from _parity import assert_like_eager
from torch import nn
from torch.utils.checkpoint import checkpoint

from torchkiln.core import Options
from torchkiln.runtime import identity_loss, inference_model, training_model

BACKENDS = ["capture", pytest.param("inductor", marks=pytest.mark.inductor)]
NATIVE_IS_SLOW = [
    "capture",
    pytest.param("inductor", marks=[pytest.mark.inductor, pytest.mark.slow]),
]


@pytest.fixture(params=BACKENDS)
def options(request, cache_dir) -> Options:
    return Options(backend=request.param, cache_dir=cache_dir, show_progress=False)


class Scaled(nn.Module):
    """Sums of a product and a tensor with `alpha`, which Inductor fuses and loses."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 6))
        self.other = nn.Parameter(torch.randn(4, 6))

    def forward(self, x):
        product = x @ self.weight
        return (
            torch.add(product, self.other, alpha=0.3),
            torch.add(self.other, x @ self.weight, alpha=0.3),
            torch.sub(product, self.other, alpha=0.7),
            torch.sub(self.other, x @ self.weight, alpha=0.7),
            torch.rsub(product, self.other, alpha=0.5),
            torch.addmm(self.other, x, self.weight, beta=0.2, alpha=3.0),
            product.clone().add_(self.other, alpha=5),
            product.clone().sub_(self.other, alpha=5),
            torch.addcmul(product, self.other, x, value=0.25),
            torch.add(product, 2.0, alpha=4.0),
        )


class Everything(nn.Module):
    """State, randomness and memory at their worst."""

    def __init__(self):
        super().__init__()
        self.scaled = Scaled()
        self.layer = nn.Linear(6, 6)
        self.transposed = nn.Parameter(torch.randn(6, 5).t())
        self.tied = nn.Linear(6, 6, bias=False)
        self.tied.weight = self.layer.weight
        self.frozen = nn.Parameter(torch.randn(6), requires_grad=False)
        self.unused = nn.Linear(2, 2)
        self.norm = nn.BatchNorm1d(6)
        self.embedding = nn.Embedding(4, 6, max_norm=0.7)
        self.register_buffer("in_place", torch.zeros(6))
        self.register_buffer("replaced", torch.zeros(()))
        self.offset = torch.ones(6)

    def _block(self, x):
        return F.dropout(self.tied(F.dropout(x, 0.3)).tanh(), 0.5)

    def forward(self, x, tokens, memory):
        hidden = F.dropout(self.norm(self.layer(x)), 0.2) + self.frozen + self.offset
        hidden = hidden[torch.randperm(4)] + self.embedding(tokens)
        hidden = checkpoint(self._block, hidden, use_reentrant=False) + torch.randn_like(hidden)
        memory.mul_(0.5).add_(hidden.detach().mean())
        self.in_place.add_(hidden.detach().sum(0), alpha=2)
        self.replaced = self.replaced + self.in_place.mean()
        parts = torch.stack(self.scaled(hidden))
        out = F.linear(hidden, self.transposed).relu()
        loss = F.mse_loss(parts, torch.zeros_like(parts)) + out.square().mean()
        weight = self.layer.weight
        return {
            "aliases": (x, x[1:], weight, weight.t(), self.transposed, self.in_place, self.offset),
            "replaced": self.replaced,
            "twice": [out, out, out[0], parts.mean()],
            "loss": loss,
        }


@pytest.mark.parametrize("options", NATIVE_IS_SLOW, indirect=True)
def test_state_randomness_and_aliases(options):
    module = Everything()
    program = assert_like_eager(
        module,
        torch.randn(4, 6),
        torch.tensor([0, 1, 2, 2]),
        torch.zeros(3),
        options=options,
        make_optimizer=partial(torch.optim.SGD, lr=0.01, momentum=0.9, weight_decay=0.1),
        steps=5,
    )
    assert module.unused.weight not in program.optimizer.state
    assert module.transposed.stride() == (1, 5)
    assert program.num_captures == 1


class Speech(nn.Module):
    """Masked attention, a CTC loss, two losses combined."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(4, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 5)

    def forward(self, x, padding, targets, lengths, target_lengths):
        hidden = self.embed(x).tanh()
        out, weights = self.attention(hidden, hidden, hidden, key_padding_mask=padding)
        scores = self.head(out).log_softmax(-1).transpose(0, 1)
        loss = F.ctc_loss(scores, targets, lengths, target_lengths, zero_infinity=True)
        return weights, scores, loss + 0.1 * F.mse_loss(out, hidden.detach())


class MarkedSpeech(Speech):
    def forward(self, *inputs):
        from torchkiln.runtime import identity_loss

        *rest, loss = super().forward(*inputs)
        return *rest, identity_loss(loss, "none")


@pytest.mark.parametrize("options", NATIVE_IS_SLOW, indirect=True)
def test_attention_and_ctc(options):
    padding = torch.zeros(2, 5, dtype=torch.bool)
    padding[1, 4:] = True
    assert_like_eager(
        MarkedSpeech(),
        torch.randn(2, 5, 4),
        padding,
        torch.tensor([[1, 2, 2], [3, 4, 0]]),
        torch.tensor([5, 4]),
        torch.tensor([3, 2]),
        options=options,
    )


class Mixed(nn.Module):
    """Layouts and dtypes: channels last, float64, integers, complex numbers, no loss."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.wide = nn.Parameter(torch.randn(5, dtype=torch.float64))

    def forward(self, image, index, *, scale: float = 2.0, flags):
        out = self.conv(image) * scale
        spectrum = torch.fft.rfft(out.flatten(1))
        wide = self.wide[index] * flags["on"]
        return out, spectrum.abs(), wide, index + 1, ~flags["on"], {"none": None, "text": "kept"}


def test_layouts_and_dtypes(options):
    module = Mixed().to(memory_format=torch.channels_last)
    image = torch.randn(2, 3, 5, 5).contiguous(memory_format=torch.channels_last)
    arguments = (image, torch.tensor([0, 3]))
    flags = {"on": torch.tensor([True, False])}
    program = inference_model(module, options)
    got = program(*arguments, flags=flags)
    with torch.no_grad():
        expected = module(*arguments, flags=flags)
    assert got[-1] == {"none": None, "text": "kept"}
    for one, other in zip(got[:-1], expected[:-1], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


class Noisy(nn.Module):
    """Masks large enough for the block generator, between every other way to draw numbers."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, x):
        hidden = F.dropout(self.layer(x), 0.2)
        hidden = hidden + 0.1 * torch.randn_like(hidden)
        hidden = F.dropout(hidden, 0.5) + torch.rand(64)
        hidden = hidden[torch.randperm(x.shape[0])] + torch.randint(0, 3, (64,))
        hidden = checkpoint(lambda h: F.dropout(h.tanh(), 0.3), hidden, use_reentrant=False)
        hidden = hidden * torch.bernoulli(torch.full_like(hidden, 0.5))
        hidden = hidden + torch.empty(64).uniform_(-1, 1) + torch.normal(0.0, 1.0, (64,))
        hidden = F.alpha_dropout(hidden + F.gumbel_softmax(hidden), 0.1, self.training)
        return hidden, F.mse_loss(F.dropout1d(hidden, 0.1), torch.zeros_like(hidden))


def test_random_stream_of_eager_pytorch(options):
    assert_like_eager(Noisy(), torch.randn(96, 64), options=options)


class CodeBook(nn.Module):
    """Distances of vectors from a code book, whose update shares loops with their backward."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(16, 16)
        self.book = nn.Parameter(torch.randn(24, 16))
        self.head = nn.Linear(24, 10)

    def forward(self, x, labels):
        codes = self.encoder(x)
        distances = (
            codes.square().sum(-1, keepdim=True)
            - 2 * (codes @ self.book.T)
            + self.book.square().sum(-1)
        )
        return distances, self.loss(codes, distances, labels)

    def loss(self, codes, distances, labels):
        return F.cross_entropy(self.head(torch.exp(-distances / 16)), labels)


class StraightThrough(CodeBook):
    """Uses the nearest code, past which the gradient goes, and draws it towards the vector."""

    def loss(self, codes, distances, labels):
        nearest = self.book[distances.argmin(-1)]
        scores = self.head(F.pad(codes + (nearest - codes).detach(), (0, 8)))
        loss = F.cross_entropy(scores, labels) + distances.min(-1).values.mean()
        return identity_loss(loss, reduction="none")


@pytest.mark.parametrize("kind", [CodeBook, pytest.param(StraightThrough, marks=pytest.mark.slow)])
def test_distances_from_a_code_book(kind, options):
    torch.manual_seed(0)
    labels = torch.arange(32) % 10
    adam = partial(torch.optim.Adam, lr=1e-3)
    assert_like_eager(kind(), torch.randn(32, 16), labels, options=options, make_optimizer=adam)


class Judged(nn.Module):
    """A network with statistics of its own, whose loss is all that a program returns."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(6)
        self.layer = nn.Linear(6, 3)

    def forward(self, x, y):
        return F.cross_entropy(self.layer(self.norm(x)), y) / 2


@pytest.mark.parametrize("options", NATIVE_IS_SLOW, indirect=True)
@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_frozen_network_is_run_and_not_trained(accumulation, options):
    torch.manual_seed(0)
    net, x, y = Judged().requires_grad_(False), torch.randn(8, 6), torch.randint(3, (8,))
    twin = copy.deepcopy(net)
    options = options.replace(gradient_accumulation=accumulation, output_mode="all")
    program = training_model(net, options, torch.optim.Adam(net.parameters()))
    with pytest.warns(UserWarning, match="nothing is trained"):
        losses = program(x, y)
    pairs = zip(x.chunk(accumulation), y.chunk(accumulation), strict=True)
    torch.testing.assert_close(losses.view(-1), torch.stack([twin(*pair) for pair in pairs]))
    torch.testing.assert_close(net.state_dict(), twin.state_dict())
