"""Who takes part: PyG, SchNetPack, and Torchkiln with and without what makes it fast."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from _schnet_child_contender import ChildContender
from _schnet_rounds import Contender, Step
from _schnetpack_client import SchNetPackContender
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn.models import SchNet as PygSchNet

from torchkiln import Options, inference_model, training_model
from torchkiln.core._progress import progress_bar
from torchkiln.datasets import MoleculeSet, directed_edges, load_qm9
from torchkiln.datasets._array_cache import data_dir
from torchkiln.graphs import FixedSizeLoader, GraphStore
from torchkiln.models import MoleculeRegression, SchNet

LEARNING_RATE = 5e-4
PYG_BATCH_SIZES = (32, 128, 512)
# As many molecules a step as a pack of 2,320 atoms holds on average.
BATCH_SIZE = 128
INFERENCE_NODES = 8_192
# What a batch of Torchkiln hands to `MoleculeRegression`, in this order.
KEYS = ("z", "edge_index", "edge_weight", "edge_ways", "batch", "y", "graph_mask")
FLUSHED_CHILD = Path(__file__).with_name("_schnet_flushed_child.py")


@dataclass(frozen=True)
class ModelSize:
    """Arguments of SchNet, and the neighbours of an atom."""

    arguments: dict[str, Any]
    k: int | None


def _size(width: int, blocks: int, gaussians: int, cutoff: float, k: int | None) -> ModelSize:
    arguments = {
        "hidden_channels": width,
        "num_filters": width,
        "num_interactions": blocks,
        "num_gaussians": gaussians,
        "cutoff": cutoff,
    }
    return ModelSize(arguments, k)


MODELS = {"A": _size(128, 6, 50, 10.0, None), "B": _size(100, 4, 25, 6.0, 28)}


@dataclass(frozen=True)
class Workload:
    """Molecules in the forms that contenders want, and the weights that all begin with."""

    size: ModelSize
    dataset: MoleculeSet
    directed: list[Data]
    weights: dict[str, Tensor]
    num_nodes: int

    @classmethod
    def load(cls, size: ModelSize, limit: int, num_nodes: int) -> Workload:
        dataset = load_qm9(
            limit=limit,
            k=size.k,
            cutoff_angstrom=size.arguments["cutoff"],
            references="fitted",
            standardize=True,
        )
        directed = []
        for graph in progress_bar(dataset.store, desc="One edge for each message", leave=False):
            edges, distances = directed_edges(graph.edge_index, graph.edge_weight, graph.edge_ways)
            directed.append(
                Data(
                    z=graph.z,
                    edge_index=edges,
                    edge_weight=distances,
                    y=graph.y,
                    num_nodes=len(graph.z),
                )
            )
        torch.manual_seed(0)
        weights = SchNet(**size.arguments).state_dict()
        return cls(size, dataset, directed, weights, num_nodes)

    def model(self, filter_form: str) -> SchNet:
        model = SchNet(**self.size.arguments, filter=filter_form)  # type: ignore[arg-type]
        model.load_state_dict(self.weights)
        return model


def make_contenders(
    workload: Workload, mode: str, arguments: argparse.Namespace
) -> list[Contender]:
    """Return who takes part in "training" or "inference"; PyG eager comes first."""
    if mode not in ("training", "inference"):
        raise SystemExit(f"no mode {mode!r}; choose from training, inference")
    makers: dict[str, Callable[[str], Contender]] = {}
    for batch_size in PYG_BATCH_SIZES:
        makers[f"PyG eager ({batch_size})"] = lambda name, size=batch_size: pyg_contender(
            workload.directed, workload.weights, name, workload.size.arguments, mode, size
        )
    for batch_size in PYG_BATCH_SIZES:
        makers[f"PyG eager flushed ({batch_size})"] = lambda name, size=batch_size: _flushed(
            workload, name, mode, size
        )
    makers[f"PyG torch.compile ({BATCH_SIZE})"] = lambda name: pyg_contender(
        workload.directed,
        workload.weights,
        name,
        workload.size.arguments,
        mode,
        BATCH_SIZE,
        compiled=True,
    )
    if arguments.schnetpack:
        makers[f"SchNetPack ({BATCH_SIZE})"] = lambda name: SchNetPackContender(
            name,
            Path(arguments.schnetpack),
            workload.dataset,
            workload.size.arguments,
            workload.weights,
            mode=mode,
            batch_size=BATCH_SIZE,
            learning_rate=LEARNING_RATE,
        )
    cache = arguments.cache or data_dir() / "benchmark_executables"
    for title, (filter_form, is_directed, padded) in _FORMS.items():
        makers[title] = lambda name, form=filter_form, edges=is_directed, pad=padded: _torchkiln(
            workload, name, mode, form, edges, pad, cache
        )
    wanted = arguments.only.split(",") if arguments.only else [""]
    return [make(name) for name, make in makers.items() if any(name.startswith(w) for w in wanted)]


# Name: filters, one edge for each message, every molecule padded to the largest.
_FORMS = {
    "Torchkiln padded": ("exact", True, True),
    "Torchkiln packed": ("exact", True, False),
    "Torchkiln pairs": ("exact", False, False),
    "Torchkiln table": ("table", False, False),
}


def _flushed(workload: Workload, name: str, mode: str, batch_size: int) -> Contender:
    directory = tempfile.TemporaryDirectory(prefix="torchkiln-flushed-")
    folder = Path(directory.name)
    torch.save((workload.directed, workload.weights), folder / "workload.pt")
    settings = {
        "name": name,
        "arguments": workload.size.arguments,
        "mode": mode,
        "batch_size": batch_size,
    }
    (folder / "settings.json").write_text(json.dumps(settings))
    return ChildContender(name, Path(sys.executable), FLUSHED_CHILD, directory)


def pyg_contender(
    directed: list[Data],
    weights: dict[str, Tensor],
    name: str,
    arguments: dict[str, Any],
    mode: str,
    batch_size: int,
    *,
    compiled: bool = False,
) -> Contender:
    """Return PyG's SchNet in this process, with one edge for each message."""
    loader = DataLoader(directed, batch_size=batch_size, shuffle=True)
    model = pyg_model(arguments, weights)
    if compiled:
        # PyG's readout asks for the largest index: one graph break, at the very end, each time.
        torch._logging.set_logs(dynamo=logging.ERROR)
    forward = torch.compile(model, dynamic=True) if compiled else model
    if mode == "inference":
        return Contender(name, loader, _pyg_inference_step(forward))
    optimizer = torch.optim.Adam(
        model.parameters(), lr=LEARNING_RATE, fused=True if compiled else None
    )

    def step(batch: Any) -> tuple[int, float]:
        optimizer.zero_grad()
        out = forward(batch.z, (batch.edge_index, batch.edge_weight), batch.batch)
        loss = F.mse_loss(out[:, 0], batch.y)
        loss.backward()
        optimizer.step()
        return batch.num_graphs, loss.item()

    return Contender(name, loader, step)


def pyg_model(arguments: dict[str, Any], weights: dict[str, Tensor]) -> PygSchNet:
    """Return PyG's SchNet, which is called with (edges, distances) in place of positions."""
    # PyG hands positions to this function only; here they are the edges themselves.
    model = PygSchNet(**arguments, interaction_graph=lambda edges, batch: edges)
    model.load_state_dict(weights)
    return model


def _pyg_inference_step(forward: Callable[..., Tensor]) -> Step:
    @torch.no_grad()
    def step(batch: Any) -> tuple[int, float]:
        out = forward(batch.z, (batch.edge_index, batch.edge_weight), batch.batch)
        return batch.num_graphs, F.mse_loss(out[:, 0], batch.y).item()

    return step


class _DirectedRegression(nn.Module):
    """`MoleculeRegression` for batches with one edge for each message."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.regression = MoleculeRegression(model)

    def forward(
        self,
        z: Tensor,
        edge_index: Tensor,
        edge_weight: Tensor,
        batch: Tensor,
        y: Tensor,
        graph_mask: Tensor,
    ) -> tuple[Tensor, Tensor]:
        return self.regression(z, edge_index, edge_weight, None, batch, y, graph_mask)


def _torchkiln(
    workload: Workload,
    name: str,
    mode: str,
    filter_form: str,
    is_directed: bool,
    padded: bool,
    cache: Path,
) -> Contender:
    store = workload.dataset.store
    if is_directed:
        store = GraphStore.from_dataset(workload.directed, progress=False)
    num_nodes = workload.num_nodes if mode == "training" else INFERENCE_NODES
    # Tensors only, as `torchkiln bench` trains.
    loading: dict[str, Any] = {"shuffle": True, "as_tensors": True}
    if padded:
        loader = FixedSizeLoader(store, strategy="padded", batch_size=BATCH_SIZE, **loading)
    else:
        loader = FixedSizeLoader(store, num_nodes=num_nodes, **loading)
    model: nn.Module = workload.model(filter_form)
    if mode == "inference" and filter_form == "table":
        model = workload.model(filter_form).bake()
    module = _DirectedRegression(model) if is_directed else MoleculeRegression(model)
    options = Options(cache_dir=cache, show_progress=False)
    if mode == "training":
        optimizer = torch.optim.Adam(module.parameters(), lr=LEARNING_RATE)
        program = training_model(module, options, optimizer)
    else:
        program = inference_model(module, options)
    keys = [key for key in KEYS if not (is_directed and key == "edge_ways")]

    def step(batch: Any) -> tuple[int, float]:
        _, loss = program(*(batch[key] for key in keys))
        return int(batch.graph_mask.sum()), loss.item()

    return Contender(name, loader, step)
