"""What `profiling.py` profiles: models with their data, and layers that can be delayed."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor, nn

from torchkiln.apps.steps._workloads import WORKLOADS, Workload

DELAYED_LAYERS = 10
_KEYS = ("z", "edge_index", "edge_weight", "edge_ways", "batch", "y", "graph_mask")


def _adam(params: Any, **extra: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(params, lr=1e-4, **extra)


def _schnet(small: bool) -> Workload:
    """The seed's SchNet (model B) on a pack of molecules of QM9."""
    from torchkiln.datasets import load_qm9
    from torchkiln.graphs import FixedSizeLoader
    from torchkiln.models import MoleculeRegression, SchNet

    molecules = load_qm9(
        limit=60 if small else 2_000,
        k=28,
        cutoff_angstrom=6.0,
        references="fitted",
        standardize=True,
    )
    num_nodes = 200 if small else 2_320
    loader = FixedSizeLoader(molecules.store, num_nodes=num_nodes, shuffle=True)
    batch = next(iter(loader))
    width = 8 if small else 100
    model = SchNet(width, width, num_interactions=4, num_gaussians=25, cutoff=6.0)
    inputs = tuple(batch[key] for key in _KEYS)
    return Workload("SchNet (QM9)", MoleculeRegression(model), inputs, _adam)


def _uresnet(small: bool) -> Workload:
    """CosmicTagger's network at a small size."""
    from torchkiln.models import Segmentation, UResNet2D, UResNetSettings

    height = 40 if small else 160
    settings = UResNetSettings(
        network_depth=3, blocks_per_layer=1, blocks_deepest_layer=1, bottleneck_deepest=64
    )
    images = torch.randn(1, 3, height, height * 8 // 5)
    labels = torch.randint(0, 3, images.shape)
    return Workload("UResNet2D", Segmentation(UResNet2D(settings)), (images, labels), _adam)


def make_workload(name: str, small: bool) -> Workload:
    """Return a workload by its name, always with the same weights and data."""
    torch.manual_seed(0)
    if name == "schnet":
        return _schnet(small)
    if name == "uresnet":
        return _uresnet(small)
    return WORKLOADS[name]()


# -- layers with a known delay ------------------------------------------------------------------


@torch.library.custom_op("torchkiln_benchmark::wait", mutates_args=())
def wait(x: Tensor, delays: Tensor, layer: int) -> Tensor:
    """Return a copy of `x` after the microseconds that `delays` has for a layer."""
    end = time.perf_counter_ns() + int(delays[layer]) * 1000
    result = x.clone()
    while time.perf_counter_ns() < end:
        pass
    return result


@wait.register_fake
def _(x: Tensor, delays: Tensor, layer: int) -> Tensor:
    return torch.empty_like(x)


wait.register_autograd(lambda context, gradient: (gradient, None, None))


class DelayedLayer(nn.Module):
    """A linear layer that waits first."""

    def __init__(self, width: int, number: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.number = number

    def forward(self, x: Tensor, delays: Tensor) -> Tensor:
        return torch.tanh(self.linear(wait(x, delays, self.number)))


class DelayedStack(nn.Module):
    """Layers, each of which waits as long as an argument says."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(DelayedLayer(width, n) for n in range(DELAYED_LAYERS))

    def forward(self, x: Tensor, delays: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, delays)
        return nn.functional.mse_loss(x, torch.zeros_like(x))
