"""What has gone wrong in compilers like this one: layers, each against plain PyTorch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from _models import MLP, SequenceNet, labels, vectors
from _parity import assert_like_eager
from torch import nn
from torch.nn.utils import parametrizations

# -- layers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM, nn.RNN])
def test_recurrent_layers(kind, options):
    assert_like_eager(SequenceNet(kind), torch.randn(4, 5, 4), labels(), options=options)


def test_two_recurrent_layers_with_dropout_in_both_directions(options):
    module = SequenceNet(
        lambda *sizes, **more: nn.LSTM(*sizes, 2, dropout=0.3, bidirectional=True, **more)
    )
    module.head = nn.Linear(12, 3)
    assert_like_eager(module, torch.randn(4, 5, 4), labels(), options=options)


def test_multihead_attention_with_mask_and_weights(options):
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x, padding):
            out, weights = self.attention(x, x, x, key_padding_mask=padding)
            return weights, F.mse_loss(out, x)

    padding = torch.tensor([[False, False, True]]).repeat(2, 1)
    assert_like_eager(Attention(), torch.randn(2, 3, 8), padding, options=options)


def test_scaled_dot_product_attention(options):
    class Causal(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Linear(8, 24)

        def forward(self, x):
            q, k, v = self.qkv(x).view(2, 4, 2, 12).transpose(1, 2).chunk(3, -1)
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return F.mse_loss(out, torch.ones_like(out))

    assert_like_eager(Causal(), torch.randn(2, 4, 8), options=options)


def test_tied_embedding_gets_both_gradients(options):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(7, 5)
            self.head = nn.Linear(5, 7, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, tokens):
            return F.cross_entropy(self.head(self.embedding(tokens)).flatten(0, 1), tokens.view(-1))

    module = Tied()
    assert_like_eager(module, torch.arange(6).view(2, 3), options=options)
    assert module.head.weight is module.embedding.weight


def test_embedding_that_renormalises_its_weight_in_forward(options):
    class Renormalised(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(7, 5, padding_idx=0, max_norm=0.5)

        def forward(self, tokens):
            return self.embedding(tokens).square().sum(-1), F.mse_loss(
                self.embedding(tokens), torch.ones(2, 3, 5)
            )

    assert_like_eager(Renormalised(), torch.arange(6).view(2, 3), options=options)


def test_ignore_index(options):
    class Ignoring(MLP):
        def forward(self, x, y):
            out = self.layers(x)
            return out, F.cross_entropy(out, y, ignore_index=-1)

    assert_like_eager(Ignoring(), vectors(), torch.tensor([0, -1, 2, -1]), options=options)


def test_weight_norm_and_spectral_norm(options):
    class Normalised(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = parametrizations.weight_norm(nn.Linear(6, 5))
            self.second = parametrizations.spectral_norm(nn.Linear(5, 3))

        def forward(self, x, y):
            return F.cross_entropy(self.second(self.first(x).relu()), y)

    assert_like_eager(Normalised(), vectors(), labels(), options=options)


def test_channels_last_module_and_input(options):
    class Image(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, x):
            out = self.conv(x)
            return out, out.square().mean() + F.mse_loss(out, torch.ones_like(out))

    module = Image().to(memory_format=torch.channels_last)
    image = torch.randn(2, 3, 5, 5).contiguous(memory_format=torch.channels_last)
    program = assert_like_eager(module, image, options=options)
    # Compiled for this layout; another is copied, and said once.
    with pytest.warns(UserWarning, match="not contiguous"):
        program(image.contiguous())


def test_lazy_layers_get_their_sizes_before_capture(options):
    from torch_geometric.nn import Linear, SAGEConv

    class Lazy(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.LazyLinear(5)
            self.norm = nn.LazyBatchNorm1d()
            self.second = Linear(-1, 4)
            self.conv = SAGEConv((-1, -1), 3)

        def forward(self, x, edges, y):
            hidden = self.second(self.norm(self.first(x)).relu())
            out = self.conv(hidden, edges.t())
            return out, F.cross_entropy(out, y)

    edges = torch.tensor([[0, 1], [1, 2], [2, 3], [3, 0]])
    program = assert_like_eager(Lazy(), vectors(), edges, labels(), options=options)
    assert program.module.norm.num_batches_tracked == 3


def test_batch_norm_in_evaluation_mode_keeps_its_statistics(options):
    module = nn.Sequential(nn.Linear(6, 4, bias=False), nn.BatchNorm1d(4))

    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = module
            self.body[1].eval()

        def forward(self, x):
            out = self.body(x)
            return F.mse_loss(out, torch.zeros_like(out))

    assert_like_eager(Half(), vectors(), options=options)
    assert module[1].num_batches_tracked == 0


# -- graph layers ----------------------------------------------------------------------------------


def _graph_layers():
    from torch_geometric.nn import GINEConv, PNAConv, SAGEConv, TransformerConv

    degrees = torch.tensor([0, 4, 4])
    return {
        "sage": lambda: SAGEConv(6, 3),
        "gine": lambda: GINEConv(nn.Linear(6, 3), edge_dim=2),
        "pna": lambda: PNAConv(
            6, 3, ["mean", "max", "std"], ["identity", "amplification"], degrees, edge_dim=2
        ),
        "transformer": lambda: TransformerConv(6, 3, edge_dim=2),
    }


@pytest.mark.parametrize("name", ["sage", "gine", "pna", "transformer"])
def test_graph_layers(name, options):
    class Graph(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = _graph_layers()[name]()

        def forward(self, x, edges, weights, y):
            extra = () if name == "sage" else (weights,)
            out = self.conv(x, edges.t(), *extra)
            return out, F.cross_entropy(out, y)

    edges = torch.tensor([[0, 1], [1, 2], [2, 3], [3, 0], [0, 2], [1, 1]])
    assert_like_eager(Graph(), vectors(), edges, torch.randn(6, 2), labels(), options=options)
