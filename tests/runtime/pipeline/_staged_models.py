"""Models that make cutting difficult, each with a micro-batch and its blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import Tensor, nn

from torchkiln.core import Anchor
from torchkiln.models import Segmentation, UResNet2D, UResNetSettings
from torchkiln.runtime import begin_block, keep_activation


def rows(count: int = 4, width: int = 6) -> Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(3))


def classes(count: int = 4, kinds: int = 3) -> Tensor:
    return torch.arange(count) % kinds


class Attention(nn.Module):
    """Written by hand, with a mask that is made in forward."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.project = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.project(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)
        scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
        scores = scores.masked_fill(mask, float("-inf")).softmax(-1)
        return self.out((scores @ value).transpose(1, 2).reshape(batch, length, width))


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, 2)
        self.feed = nn.Sequential(nn.Linear(width, 16), nn.GELU(), nn.Linear(16, width))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.norm1(x), mask))
        return x + self.feed(self.norm2(x))


class Decoder(nn.Module):
    """Embeddings of tokens and places, a causal mask for all layers, labels from the input."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(11, 8), nn.Embedding(5, 8)
        self.layers = nn.ModuleList(Layer(8) for _ in range(3))
        self.head = nn.Linear(8, 11, bias=False)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        length = tokens.shape[1]
        x = self.tokens(tokens) + self.places(torch.arange(length))
        mask = torch.ones(length, length, dtype=torch.bool).triu(1)
        for layer in self.layers:
            x = layer(x, mask)
        logits = self.head(x)
        return logits, F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, 0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        out = self.head(self.encoder(x).mean(1))
        return out, F.cross_entropy(out, y)


class Outputs(nn.Module):
    """Each stage makes an output; the input is used in all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        first = self.a(x)
        second = self.b(F.relu(first) + x)
        out = self.c(second * x.sum(1, keepdim=True))
        auxiliary = first.square().mean()
        return {
            "first": first,
            "view": first[:, :2],
            "second": second.detach(),
            "input": x,
            "constant": torch.ones(2),
            "loss": F.cross_entropy(out, y) + 0.1 * auxiliary,
        }


class InPlace(nn.Module):
    """Writes to views and to what another stage made, and reads older views afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.a(x) + 1
        upper = hidden[:2]
        begin_block("middle")
        hidden += x
        hidden[:, 1:3] *= 2
        scratch = torch.zeros(4, 6)
        scratch[1:] = hidden[1:]
        folded = hidden * 2
        folded.unsqueeze_(0)
        begin_block(3)
        out = self.c(self.b(hidden) + scratch + upper.sum(0) + folded[0])
        return out, F.cross_entropy(out, y)


class Buffers(nn.Module):
    """Buffers that are replaced, counted and read again in backward."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 3)
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("scale", torch.full((6,), 2.0))
        self.register_buffer("last", torch.zeros(4, 3))

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.a(x)
        hidden = hidden * self.mean.exp()  # backward reads what was there before
        self.mean = 0.9 * self.mean + 0.1 * hidden.detach().mean(0)
        self.count += 1
        self.scale.mul_(1.1)
        hidden = hidden * self.scale
        out = self.b(hidden) + self.last.mean()
        self.last = out.detach().clone()
        return out, F.cross_entropy(out, y)


class Skips(nn.Module):
    """Values that pass over a stage, and weights that are used in another one as a value."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.gain = nn.Parameter(torch.ones(6))

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        gain = self.gain.sigmoid()
        first = self.a(x * gain).tanh()
        second = keep_activation(self.b(first)).tanh()
        out = self.c(torch.cat([second[:, :3], (first * gain).t()[:3].t()], 1))
        return out, F.cross_entropy(out, y)


class Strides(nn.Module):
    """Small views of another stage's values, one of them by its places in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 24), nn.Linear(2, 3)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        first, second = self.a(x).tanh(), self.a(x).sin()
        small = first[:, 20:22]
        odd = second[:, 4:6].as_strided((4, 2), (24, 2), 4)
        begin_block("late")
        out = self.b(small + odd)
        return out, F.cross_entropy(out, y)


class Repeated(nn.Module):
    """Blocks with statistics and chance, inside of which nothing is kept if so asked."""

    def __init__(self) -> None:
        super().__init__()

        def block() -> nn.Sequential:
            return nn.Sequential(
                nn.Linear(6, 6), nn.BatchNorm1d(6), nn.ReLU(inplace=True), nn.Dropout(0.5)
            )

        self.blocks = nn.ModuleList(block() for _ in range(4))
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        for block in self.blocks:
            x = x + block(x)
        out = self.head(x)
        return out, F.cross_entropy(out, y)


def u_net(**changes: Any) -> nn.Module:
    settings = UResNetSettings(
        n_initial_filters=2,
        network_depth=2,
        blocks_per_layer=1,
        blocks_deepest_layer=1,
        bottleneck_deepest=4,
        filter_size_deepest=3,
        **changes,
    )
    return Segmentation(UResNet2D(settings))


def frozen(make: Callable[[], nn.Module], *names: str) -> Callable[[], nn.Module]:
    def made() -> nn.Module:
        module = make()
        for name in names:
            module.get_submodule(name).requires_grad_(False)
        return module

    return made


@dataclass(frozen=True)
class Case:
    make: Callable[[], nn.Module]
    batch: Callable[[], tuple[Tensor, ...]]
    blocks: tuple[tuple[str, ...], ...]
    options: dict[str, Any] = field(default_factory=dict)


def _vectors() -> tuple[Tensor, ...]:
    return rows(), classes()


def _sequences() -> tuple[Tensor, ...]:
    return torch.randn(4, 5, 8, generator=torch.Generator().manual_seed(2)), classes()


def _tokens() -> tuple[Tensor, ...]:
    return (torch.randint(0, 11, (4, 5), generator=torch.Generator().manual_seed(2)),)


def _events() -> tuple[Tensor, ...]:
    rng = torch.Generator().manual_seed(2)
    return torch.rand(2, 3, 8, 16, generator=rng), torch.randint(0, 3, (2, 3, 8, 16), generator=rng)


def _one_each(*names: str) -> tuple[tuple[str, ...], ...]:
    return tuple((name,) for name in names)


_LAYERS = _one_each("layers.0", "layers.1", "layers.2")
_U2 = _one_each("model.first", "model.upsamples.1")
_U3 = _one_each("model.first", "model.deepest", "model.up_blocks.1")
_BLOCKS = (("blocks.0", "blocks.1"), ("blocks.2",), ("blocks.3", "head"))

STAGED = {
    "decoder": Case(Decoder, _tokens, _LAYERS),
    "decoder in half": Case(Decoder, _tokens, _LAYERS, {"precision": "bfloat16"}),
    "encoder": Case(Encoder, _sequences, _one_each("encoder.layers.0", "encoder.layers.2")),
    "encoder in half": Case(
        Encoder, _sequences, _one_each("encoder.layers.0", "head"), {"precision": "bfloat16"}
    ),
    "u-net, 2": Case(u_net, _events, _U2),
    "u-net, 3": Case(u_net, _events, _U3),
    "u-net in half": Case(u_net, _events, _U3, {"precision": "bfloat16"}),
    "u-net, recomputed": Case(u_net, _events, _U3, {"recompute": ["model.down_blocks.0"]}),
    "outputs": Case(Outputs, _vectors, _one_each("a", "b", "c")),
    "in place": Case(InPlace, _vectors, _one_each("a", "middle", "3")),
    "buffers": Case(Buffers, _vectors, _one_each("a", "b")),
    "skips": Case(Skips, _vectors, _one_each("a", "b", "c")),
    "strides": Case(Strides, _vectors, _one_each("a", "late")),
    "half weights": Case(
        lambda: Skips().bfloat16(),
        lambda: (rows().bfloat16(), classes()),
        _one_each("a", "b", "c"),
        {"reduction": "mean"},
    ),
    "anchors": Case(
        Skips,
        _vectors,
        _one_each("a", "b", "c"),
        {"anchors": {"l": Anchor("loss"), "g": Anchor("Gradient___a.weight")}},
    ),
    "blocks": Case(Repeated, _vectors, _BLOCKS),
    "recomputed": Case(Repeated, _vectors, _BLOCKS, {"recompute": ["blocks.1", "blocks.2"]}),
    "recomputed by choice": Case(Repeated, _vectors, _BLOCKS, {"recompute": "auto"}),
    "frozen first": Case(frozen(Repeated, "blocks.0", "blocks.1"), _vectors, _BLOCKS),
    "frozen middle": Case(frozen(Repeated, "blocks.2"), _vectors, _BLOCKS),
    "mean": Case(Repeated, _vectors, _BLOCKS, {"reduction": "mean"}),
}
