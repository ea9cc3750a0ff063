"""DimeNet++ of benchmarks/layers.py: PyG's numbers, packed and compiled, whatever filler holds."""

import copy
from unittest import mock

import pytest
import torch
from _layers_dimenet import DimeNetOnTriplets
from _layers_triplets import TripletLoader, with_triplets
from torch import nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn.models import DimeNetPlusPlus, dimenet
from torch_geometric.utils import to_undirected

from torchkiln import Options, identity_loss, training_model
from torchkiln.graphs import make_static

NUM_MOLECULES = 14
# Of float64: a wrong triplet or a filler that leaks is far above it, another order of sums below.
TOLERANCE = {"rtol": 1e-9, "atol": 1e-9}


class Energies(nn.Module):
    """Energies, and a loss to which every real one contributes."""

    keys = ("z", "pos", "edge_index", "triplet_index", "batch", "graph_mask")

    def __init__(self, body):
        super().__init__()
        self.body = body

    def forward(self, z, pos, edge_index, triplet_index, batch, graph_mask):
        energies = self.body(z, pos, edge_index, triplet_index, batch, graph_mask.shape[0])
        energies = energies.squeeze(-1)
        loss = torch.where(graph_mask, energies, 0.0).square().sum()
        return energies, identity_loss(loss, reduction="none")


@pytest.fixture(scope="module")
def first_model():
    torch.manual_seed(0)
    body = DimeNetOnTriplets(
        hidden_channels=8,
        out_channels=1,
        num_blocks=2,
        int_emb_size=6,
        basis_emb_size=4,
        out_emb_channels=8,
        num_spherical=3,
        num_radial=2,
        output_initializer="glorot_orthogonal",  # zeros would hide everything before them
    )
    return Energies(body).double()


@pytest.fixture
def model(first_model):
    return copy.deepcopy(first_model)


@pytest.fixture
def molecules():
    """Rings with tails; the first molecule has no triplet, the second only straight ones."""
    chains = [torch.tensor([[0], [1]]), torch.tensor([[0, 1, 2], [1, 2, 3]])]
    return [_molecule(i, chains[i] if i < 2 else None) for i in range(NUM_MOLECULES)]


def _molecule(number, chain):
    if chain is None:
        count = 5 + number % 4
        bonds = torch.tensor(
            [(i, (i + 1) % 4) for i in range(4)] + [(i - 4, i) for i in range(4, count)]
        ).T
        pos = 1.5 * torch.randn(count, 3, dtype=torch.float64)
    else:
        count, bonds = int(chain.max()) + 1, chain
        pos = torch.arange(count, dtype=torch.float64)[:, None] * torch.tensor([1.1, 0.0, 0.0])
    graph = Data(
        z=torch.randint(1, 10, (count,)),
        edge_index=to_undirected(bonds),
        y=torch.tensor([float(number)]),  # tells the molecule in a packed batch
    )
    return with_triplets(graph, pos)


def _pyg_batch(molecules):
    batch = Batch.from_data_list(molecules)
    batch.graph_mask = torch.ones(batch.num_graphs, dtype=torch.bool)
    return batch


def _search_one_by_one(edge_index, num_nodes):
    """What PyG's `triplets` returns, without torch_sparse."""
    edges = edge_index.T.tolist()
    rows = [
        (i, j, k, kj, ji)
        for ji, (j, i) in enumerate(edges)
        for kj, (k, end) in enumerate(edges)
        if end == j and k != i
    ]
    return edge_index[1], edge_index[0], *torch.tensor(rows).T


def _gradients(model, batch):
    _, loss = model(*(batch[key] for key in model.keys))
    return torch.autograd.grad(loss, list(model.parameters()))


def test_given_triplets_give_what_pygs_own_forward_searches(model, molecules):
    batch = _pyg_batch(molecules)
    energies, _ = model(*(batch[key] for key in model.keys))
    with (
        mock.patch.object(dimenet, "radius_graph", return_value=batch.edge_index),
        mock.patch.object(dimenet, "triplets", _search_one_by_one),
    ):
        expected = DimeNetPlusPlus.forward(model.body, batch.z, batch.pos, batch.batch)
    torch.testing.assert_close(energies, expected.squeeze(-1), **TOLERANCE)


@pytest.mark.parametrize(
    "backend",
    ["capture", pytest.param("inductor", marks=[pytest.mark.inductor, pytest.mark.slow])],
)
def test_packed_energies_and_gradients_are_those_of_pyg(backend, model, molecules, cache_dir):
    loader = TripletLoader(molecules, batch_size=5, shuffle=True)
    static = make_static(copy.deepcopy(model), loader.spec, verbose=False)
    before = [weight.detach().clone() for weight in static.parameters()]
    program = training_model(
        static,
        Options(backend=backend, cache_dir=cache_dir, show_progress=False),
        torch.optim.SGD(static.parameters(), lr=1.0),
    )
    seen = []
    for packed in loader:
        with torch.no_grad():
            for weight, first in zip(static.parameters(), before, strict=True):
                weight.copy_(first)
        real = packed["graph_mask"]
        numbers = packed["y"][real].long().tolist()
        batch = _pyg_batch([molecules[number] for number in numbers])
        energies, _ = program(*(packed[key] for key in model.keys))
        expected, _ = model(*(batch[key] for key in model.keys))
        torch.testing.assert_close(energies[real], expected, **TOLERANCE)
        # A step of plain descent with rate 1 goes by the gradient.
        gradients = [a - b.detach() for a, b in zip(before, static.parameters(), strict=True)]
        torch.testing.assert_close(gradients, list(_gradients(model, batch)), **TOLERANCE)
        seen += numbers
    assert sorted(seen) == list(range(NUM_MOLECULES))
    assert len(loader) > 1
    assert program.num_compiles <= 1  # none, if another run left it in the cache


def test_what_filler_holds_changes_nothing(model, molecules):
    packed = next(iter(TripletLoader(molecules, batch_size=5, shuffle=True)))
    is_loop = packed["edge_index"][0] == packed["edge_index"][1]
    assert is_loop[packed["triplet_index"]].any(dim=1).all(), "there is no filler to test"
    filler = ~packed["graph_mask"][packed["batch"]]
    other = {**packed, "z": packed["z"].clone(), "pos": packed["pos"].clone()}
    other["z"][filler] = 7
    other["pos"][filler] = torch.randn(int(filler.sum()), 3, dtype=torch.float64)
    for one, two in zip(_gradients(model, packed), _gradients(model, other), strict=True):
        assert one.isfinite().all()
        torch.testing.assert_close(one, two, rtol=0, atol=0)
