"""Graphs for the tests of the façade."""

import shutil
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data, HeteroData

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"


def load_mutag(root):
    """Return the real dataset, made from the raw files beside the repository."""
    from torch_geometric.datasets import TUDataset

    if not (SHARED / "MUTAG").is_dir():
        pytest.skip(f"needs the raw files of MUTAG in {SHARED / 'MUTAG'}")
    raw = Path(root) / "MUTAG" / "raw"
    if not raw.exists():
        shutil.copytree(SHARED / "MUTAG", raw)
    return TUDataset(str(root), "MUTAG")


def make_graph(num_nodes=3, num_edges=4, **extra):
    return Data(
        x=torch.randn(num_nodes, 3),
        edge_index=torch.randint(0, num_nodes, (2, num_edges)),
        edge_attr=torch.randn(num_edges, 2),
        y=torch.randn(1),
        **extra,
    )


def make_hetero(authors=4, papers=2):
    graph = HeteroData()
    graph["author"].x = torch.randn(authors, 2)
    graph["paper"].x = torch.randn(papers, 3)
    graph["author", "wrote", "paper"].edge_index = torch.stack(
        [torch.randint(0, authors, (5,)), torch.randint(0, papers, (5,))]
    )
    return graph


WROTE = ("author", "wrote", "paper")


def make_graphs(count=20, seed=0):
    """Return graphs of 2..9 nodes and 1..12 edges."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.randint(2, 10, (count,), generator=generator).tolist()
    edges = torch.randint(1, 13, (count,), generator=generator).tolist()
    return [make_graph(n, e) for n, e in zip(sizes, edges, strict=True)]
