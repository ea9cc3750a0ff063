"""Energies, gradients and forces of one trained SchNet in several arithmetics, beside float64."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn.models import SchNet as PygSchNet

from torchkiln import Options, training_model
from torchkiln.apps.schnet._trained import TrainedModel
from torchkiln.datasets import directed_edges, molecule_store, qm9_molecules
from torchkiln.datasets.molecules._splits import choose_some
from torchkiln.graphs import BatchSpec, collate
from torchkiln.models import MoleculeRegression, SchNet

_SEED = 1
_PYG_ARGUMENTS = ("hidden_channels", "num_filters", "num_interactions", "num_gaussians", "cutoff")


@dataclass(frozen=True)
class Sample:
    """The same molecules as a fixed-size batch and as PyG's batch of directed edges.

    Distances and positions are rounded to float32 before anybody computes: inputs have no error.
    """

    packed: Any
    packed_pos: Tensor
    pyg: Any

    @property
    def num_real(self) -> int:
        return int(self.packed.graph_mask.sum())


@dataclass(frozen=True)
class Values:
    """What one way to compute says about a sample, in float64."""

    energies: Tensor
    gradient: Tensor
    forces: Tensor


Evaluate = Callable[[Sample], Values]


def make_samples(trained: TrainedModel, num_samples: int, num_molecules: int) -> list[Sample]:
    """Return random molecules of QM9, with the targets and the neighbours of the training run."""
    everything = qm9_molecules()
    dataset = trained.facts["dataset"]
    chosen = choose_some(len(everything), num_samples * num_molecules, seed=_SEED)
    molecules = everything.take(chosen)
    values = molecules.targets[trained.transform.target]
    store = molecule_store(
        molecules,
        k=dataset["k"],
        cutoff_angstrom=dataset["cutoff_angstrom"],
        y=trained.transform.apply(values, molecules.z, molecules.offsets),
    )
    parts = np.array_split(np.arange(len(molecules)), num_samples)
    sizes = [store[part.tolist()].sizes for part in parts]
    # One size for all, so that one compiled program takes them all; one of each is filler.
    spec = BatchSpec(
        1 + max(int(size["nodes"].sum()) for size in sizes),
        1 + max(int(size["edges"].sum()) for size in sizes),
        num_molecules + 1,
    )
    return [_make_sample(store, molecules, part.tolist(), spec) for part in parts]


def _make_sample(store: Any, molecules: Any, indices: list[int], spec: BatchSpec) -> Sample:
    graphs, positions = [], []
    for index in indices:
        graph = store[index]
        edges, distances = directed_edges(graph.edge_index, graph.edge_weight, graph.edge_ways)
        begin, end = molecules.offsets[index : index + 2]
        pos = torch.tensor(molecules.pos[begin:end], dtype=torch.float32)
        graphs.append(Data(z=graph.z, edge_index=edges, edge_weight=distances, y=graph.y, pos=pos))
        positions.append(pos)
    packed = collate(store, indices, spec)
    packed_pos = torch.zeros(len(packed.z), 3)
    packed_pos[: sum(map(len, positions))] = torch.cat(positions)
    return Sample(packed, packed_pos, Batch.from_data_list(graphs))


def pyg(trained: TrainedModel, dtype: torch.dtype) -> Evaluate:
    """Return PyG's SchNet with the trained weights, in `dtype`."""
    arguments = {name: getattr(trained.model, name) for name in _PYG_ARGUMENTS}
    # PyG hands positions to this function only; here they are the edges themselves.
    model = PygSchNet(
        **arguments, readout=trained.model.readout, interaction_graph=lambda edges, batch: edges
    )
    model.load_state_dict(trained.model.state_dict())
    model = model.to(dtype)

    def evaluate(sample: Sample) -> Values:
        batch = sample.pyg

        def energies(distances: Tensor) -> Tensor:
            return model(batch.z, (batch.edge_index, distances), batch.batch)[:, 0]

        distances, pos = batch.edge_weight.to(dtype), batch.pos.to(dtype)
        return _values(model, energies, distances, pos, batch.edge_index, batch.y.to(dtype))

    return evaluate


def ours(trained: TrainedModel, filter_form: str, num_knots: int | None = None) -> Evaluate:
    """Return our SchNet with the trained weights, in float32, operator by operator."""
    model = _as_form(trained, filter_form, num_knots)

    def evaluate(sample: Sample) -> Values:
        batch, count = sample.packed, sample.num_real

        def energies(distances: Tensor) -> Tensor:
            return model(
                batch.z,
                batch.edge_index,
                distances,
                batch.batch,
                num_graphs=len(batch.graph_mask),
                edge_ways=batch.edge_ways,
            )[:count, 0]

        return _values(
            model,
            energies,
            batch.edge_weight,
            sample.packed_pos,
            batch.edge_index,
            batch.y.flatten()[:count],
            num_atoms=sample.pyg.num_nodes,
        )

    return evaluate


def compiled(trained: TrainedModel, filter_form: str, forces: Evaluate) -> Evaluate:
    """Return energies and gradients of the very step that training runs: native code.

    Forces are no part of it; they are those of `forces`.
    """
    module = MoleculeRegression(_as_form(trained, filter_form, None))
    before = copy.deepcopy(module.state_dict())
    # After its first step, momentum is the gradient, bit for bit.
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-30, momentum=0.5)
    options = Options(show_progress=False)
    program = training_model(module, options, optimizer)

    def evaluate(sample: Sample) -> Values:
        batch = sample.packed
        module.load_state_dict(before)
        for state in optimizer.state.values():
            state["momentum_buffer"].zero_()
        prediction, _ = program(
            batch.z,
            batch.edge_index,
            batch.edge_weight,
            batch.edge_ways,
            batch.batch,
            batch.y,
            batch.graph_mask,
        )
        named = {name.removeprefix("model."): p for name, p in module.named_parameters()}
        moments = {name: optimizer.state[p]["momentum_buffer"] for name, p in named.items()}
        energies = prediction[: sample.num_real].double()
        return Values(energies.clone(), _flat(moments), forces(sample).forces)

    return evaluate


def _as_form(trained: TrainedModel, filter_form: str, num_knots: int | None) -> SchNet:
    arguments = {**trained.facts["model"], "filter": filter_form, "num_knots": num_knots}
    model = SchNet(**arguments)
    model.load_state_dict(trained.model.state_dict())
    return model


def _values(
    model: nn.Module,
    energies: Callable[[Tensor], Tensor],
    distances: Tensor,
    pos: Tensor,
    edge_index: Tensor,
    targets: Tensor,
    num_atoms: int | None = None,
) -> Values:
    predicted = energies(distances)
    named = dict(model.named_parameters())
    grads = torch.autograd.grad(F.mse_loss(predicted, targets), list(named.values()))
    pos = pos.clone().requires_grad_()
    first, second = edge_index
    total = energies((pos[first] - pos[second]).norm(dim=1)).sum()
    (slope,) = torch.autograd.grad(total, pos)
    gradient = _flat(dict(zip(named, grads, strict=True)))
    return Values(predicted.detach().double(), gradient, -slope[:num_atoms].double())


def _flat(by_name: dict[str, Tensor]) -> Tensor:
    return torch.cat([by_name[name].double().flatten() for name in sorted(by_name)])


def measure(
    samples: Iterable[Sample], truth: list[Values], evaluate: Evaluate, deviation: float
) -> dict[str, float]:
    """Return errors against `truth`: energies by `deviation`, the others by their own length.

    Energies and forces are taken over all molecules together, gradients batch by batch, as training
    would use them (root of the mean square over batches).
    """
    found = [evaluate(sample) for sample in samples]
    pairs = list(zip(found, truth, strict=True))
    energies = torch.cat([a.energies - b.energies for a, b in pairs]) / deviation
    forces = torch.cat([a.forces - b.forces for a, b in pairs])
    true_forces = torch.cat([value.forces for value in truth])
    gradients = torch.stack(
        [(a.gradient - b.gradient).norm() / b.gradient.norm() for a, b in pairs]
    )
    return {
        "energy_rms": float(energies.square().mean().sqrt()),
        "energy_max": float(energies.abs().max()),
        "gradient": float(gradients.square().mean().sqrt()),
        "forces": float(forces.norm() / true_forces.norm()),
        "forces_max": float(forces.abs().max() / true_forces.square().mean().sqrt()),
    }
