"""Graphs for the tests of clusters and neighbour sampling."""

import shutil
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data, HeteroData

CORA = Path(__file__).resolve().parents[3] / "shared" / "data" / "Cora"


def load_cora(root):
    """Return the real Cora graph; skip where its files are missing."""
    if not CORA.exists():
        pytest.skip(f"the raw files of Cora are not at {CORA}")
    from torch_geometric.datasets import Planetoid

    shutil.copytree(CORA, root / "Cora" / "raw")
    return Planetoid(str(root), "Cora")[0]


def random_graph(num_nodes=200, num_edges=1200, seed=0):
    """Return a directed graph whose attributes tell nodes and edges apart."""
    generator = torch.Generator().manual_seed(seed)
    edge_index = torch.randint(num_nodes, (2, num_edges), generator=generator)
    return Data(
        x=torch.arange(num_nodes, dtype=torch.float32).unsqueeze(1),
        edge_index=edge_index,
        edge_attr=torch.arange(num_edges, dtype=torch.float32),
        y=torch.arange(num_nodes) % 3,
    )


def library(num_papers=60, num_authors=25, seed=0):
    """Return a heterogeneous graph of papers and authors."""
    generator = torch.Generator().manual_seed(seed)

    def ends(num_sources, num_targets, count):
        return torch.stack(
            [
                torch.randint(num_sources, (count,), generator=generator),
                torch.randint(num_targets, (count,), generator=generator),
            ]
        )

    data = HeteroData()
    data["paper"].x = torch.arange(num_papers, dtype=torch.float32).unsqueeze(1)
    data["paper"].y = torch.arange(num_papers) % 4
    data["author"].x = torch.arange(num_authors, dtype=torch.float32).unsqueeze(1)
    data["author", "writes", "paper"].edge_index = ends(num_authors, num_papers, 150)
    data["paper", "rev_writes", "author"].edge_index = data[
        "author", "writes", "paper"
    ].edge_index.flip(0)
    data["paper", "cites", "paper"].edge_index = ends(num_papers, num_papers, 240)
    data["paper", "cites", "paper"].edge_attr = torch.arange(240.0)
    return data


def same_tensors(first, second):
    """Whether two graphs hold the same tensors under the same names."""
    return _same(first.to_dict(), second.to_dict())


def _same(left, right):
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(_same(left[k], right[k]) for k in left)
    if isinstance(left, torch.Tensor):
        return torch.equal(left, right)
    return left == right
