"""Graphs and models of `layers.py`: the same for PyG and for Torchkiln."""

from __future__ import annotations

import copy
import functools
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from _layers_dimenet import DimeNetOnTriplets
from _layers_triplets import with_triplets
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.data.separate import separate
from torch_geometric.nn import global_mean_pool
from torch_geometric.nn.models import GAT, GCN, GIN, PNA, GraphSAGE
from torch_geometric.nn.models import SchNet as PygSchNet
from torch_geometric.utils import degree, to_undirected

from torchkiln import identity_loss
from torchkiln.datasets import qm9_arrays
from torchkiln.datasets.qm9._pyg import collated

HIDDEN, NUM_LAYERS = 64, 3
MUTAG_FOLDER = Path(__file__).parents[2] / "shared/data/MUTAG"
# 188 molecules are less than one large batch: the set is repeated.
MUTAG_COPIES = 16
_GAP = 4


@dataclass(frozen=True)
class Graphs:
    """Graphs with `x`, `y` (a number each) and, if they lie in space, `z` and `edge_weight`.

    Their positions are kept apart: the one model that needs them must not make others load them.
    """

    name: str
    graphs: list[Data]
    positions: list[Tensor] | None = None

    @property
    def in_space(self) -> bool:
        return self.positions is not None

    def degree_histogram(self) -> Tensor:
        """Return how many nodes have each number of incoming edges, as PNA wants it."""
        degrees = [degree(g.edge_index[1], g.num_nodes, torch.long) for g in self.graphs]
        return torch.bincount(torch.cat(degrees))


def mutag() -> Graphs:
    """Return real MUTAG, several times; without its files, generated graphs of like sizes."""
    if not MUTAG_FOLDER.is_dir():
        torch.manual_seed(0)
        return Graphs("MUTAG-like", [_ring_with_tail() for _ in range(188)] * MUTAG_COPIES)
    from torch_geometric.datasets import TUDataset

    with tempfile.TemporaryDirectory() as root:
        shutil.copytree(MUTAG_FOLDER, Path(root) / "MUTAG/raw")
        whole = TUDataset(root, name="MUTAG")
        graphs = [Data(x=g.x, edge_index=g.edge_index, y=g.y.float()) for g in whole]
    return Graphs("MUTAG", graphs * MUTAG_COPIES)


def _ring_with_tail() -> Data:
    """Return a ring of six with a random tree on it: 10 to 28 nodes, MUTAG's mean of 18."""
    count = int(torch.normal(17.9, 4.6, ()).round().clamp(10, 28))
    ring = [(i, (i + 1) % 6) for i in range(6)]
    tree = [(i, int(torch.randint(max(0, i - 4), i, ()))) for i in range(6, count)]
    x = nn.functional.one_hot(torch.randint(7, (count,)), 7).float()
    return Data(
        x=x,
        edge_index=to_undirected(torch.tensor(ring + tree).T),
        y=torch.randint(2, (1,)).float(),
    )


def qm9_bonds(limit: int) -> Graphs:
    """Return molecules of QM9 with bonds as edges, bond lengths, and the HOMO-LUMO gap."""
    values, slices = collated(qm9_arrays().first(limit))
    whole = Data(**values)
    graphs, positions = [], []
    for i in range(len(slices["y"]) - 1):
        one = separate(Data, whole, i, slices, decrement=False)
        source, target = one.edge_index
        graphs.append(
            Data(
                x=one.x,
                z=one.z,
                edge_index=one.edge_index,
                edge_weight=(one.pos[source] - one.pos[target]).norm(dim=-1),
                y=one.y[0, _GAP : _GAP + 1],
            )
        )
        positions.append(one.pos)
    return Graphs("QM9 bonds", graphs, positions)


class _Regression(nn.Module):
    """A number for each graph; mean squared error over real graphs."""

    keys = ("x", "edge_index", "batch", "y", "graph_mask")

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.head = nn.Linear(HIDDEN, 1)

    def forward(
        self, x: Tensor, edge_index: Tensor, batch: Tensor, y: Tensor, graph_mask: Tensor
    ) -> Tensor:
        nodes = self.body(x, edge_index)
        graphs = global_mean_pool(nodes, batch, size=graph_mask.shape[0])
        return _loss(self.head(graphs).squeeze(-1), y, graph_mask)


class _SchNetRegression(nn.Module):
    """PyG's own SchNet with the edges of the batch."""

    keys = ("z", "edge_index", "edge_weight", "batch", "y", "graph_mask")

    def __init__(self) -> None:
        super().__init__()
        self.body = PygSchNet(
            hidden_channels=HIDDEN,
            num_filters=HIDDEN,
            num_interactions=NUM_LAYERS,
            readout="mean",
            interaction_graph=_given_edges,
        )

    def forward(
        self,
        z: Tensor,
        edge_index: Tensor,
        edge_weight: Tensor,
        batch: Tensor,
        y: Tensor,
        graph_mask: Tensor,
    ) -> Tensor:
        out = self.body(z, (edge_index, edge_weight), batch)
        return _loss(out.squeeze(-1), y, graph_mask)


class _DimeNetRegression(nn.Module):
    """PyG's DimeNet++ with the edges and triplets of the batch."""

    keys = ("z", "pos", "edge_index", "triplet_index", "batch", "y", "graph_mask")

    def __init__(self) -> None:
        super().__init__()
        self.body = DimeNetOnTriplets(
            hidden_channels=HIDDEN,
            out_channels=1,
            num_blocks=NUM_LAYERS,
            int_emb_size=HIDDEN // 2,
            basis_emb_size=8,
            out_emb_channels=HIDDEN,
            num_spherical=7,
            num_radial=6,
        )

    def forward(
        self,
        z: Tensor,
        pos: Tensor,
        edge_index: Tensor,
        triplet_index: Tensor,
        batch: Tensor,
        y: Tensor,
        graph_mask: Tensor,
    ) -> Tensor:
        out = self.body(z, pos, edge_index, triplet_index, batch, graph_mask.shape[0])
        return _loss(out.squeeze(-1), y, graph_mask)


def _given_edges(edges: tuple[Tensor, Tensor], batch: Tensor) -> tuple[Tensor, Tensor]:
    # PyG hands positions to this function only; here they are the edges themselves.
    return edges


def _loss(out: Tensor, y: Tensor, graph_mask: Tensor) -> Tensor:
    error = torch.where(graph_mask, out - y, 0.0)
    return identity_loss(error.square().sum() / graph_mask.sum().clamp(min=1), reduction="mean")


def _body(kind: Callable[..., nn.Module], **arguments: object) -> Callable[[Graphs], nn.Module]:
    def make(graphs: Graphs) -> nn.Module:
        width = graphs.graphs[0].x.shape[1]
        return _Regression(kind(width, HIDDEN, num_layers=NUM_LAYERS, **arguments))

    return make


def _pna(graphs: Graphs) -> nn.Module:
    make = _body(
        PNA,
        aggregators=["mean", "min", "max", "std"],
        scalers=["identity", "amplification", "attenuation"],
        deg=graphs.degree_histogram(),
    )
    return make(graphs)


@functools.cache
def _first_dimenet() -> nn.Module:
    return _DimeNetRegression()


def _dimenet(graphs: Graphs) -> nn.Module:
    # SymPy derives its basis, for seconds each time; a copy has the same first weights as well.
    return copy.deepcopy(_first_dimenet())


MODELS: dict[str, Callable[[Graphs], nn.Module]] = {
    "GCN": _body(GCN),
    "GIN": _body(GIN),
    "SAGE": _body(GraphSAGE),
    "GAT": _body(GAT, heads=4),
    "PNA": _pna,
    "SchNet": lambda graphs: _SchNetRegression(),
    "DimeNet++": _dimenet,
}


def can_run(model: str, graphs: Graphs) -> bool:
    """Whether the model has what it needs: distances, or angles."""
    return model not in ("SchNet", "DimeNet++") or graphs.in_space


def prepare(model: str, graphs: Graphs) -> Graphs:
    """Return the graphs as the model wants them; this is done once and does not count."""
    if model != "DimeNet++":
        return graphs
    assert graphs.positions is not None
    return replace(graphs, graphs=list(map(with_triplets, graphs.graphs, graphs.positions)))


def make_model(model: str, graphs: Graphs) -> nn.Module:
    """Return the model with the same first weights each time."""
    torch.manual_seed(0)
    return MODELS[model](graphs)
