"""Graphs for the tests of stores, collation and loaders."""

from __future__ import annotations

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData


def rich_graph(index: int, num_nodes: int, num_edges: int) -> Data:
    """Return a graph with every kind of attribute, in an order that is not PyG's."""
    generator = torch.Generator().manual_seed(index)
    graph = Data()
    graph.y = torch.rand(1, 19, generator=generator)
    graph.x = torch.rand(num_nodes, 5, generator=generator)
    graph.edge_index = torch.randint(max(num_nodes, 1), (2, num_edges), generator=generator)
    graph.edge_attr = torch.rand(num_edges, 3, generator=generator).bfloat16()
    graph.edge_weight = torch.rand(num_edges, generator=generator, dtype=torch.float64)
    graph.z = torch.randint(9, (num_nodes,), generator=generator, dtype=torch.int8)
    graph.train_mask = torch.rand(num_nodes, generator=generator) > 0.5
    graph.wave = torch.rand(num_nodes, 2, generator=generator).to(torch.complex64)
    graph.name = f"graph-{index}" if index % 2 else f"Graph {index} é"
    graph.charge = index - 3
    graph.energy = index / 7
    graph.stable = index % 2 == 0
    graph.tag = torch.tensor(index)
    graph.target = torch.full((3,), float(index))
    graph.history = [index, None, {"step": "a"}]
    return graph


def rich_graphs(count: int = 12) -> list[Data]:
    return [rich_graph(i, 2 + i % 5, (3 * i) % 7) for i in range(count)]


def two_type_graph(index: int, papers: int, authors: int, writes: int) -> HeteroData:
    generator = torch.Generator().manual_seed(index)
    graph = HeteroData()
    graph["paper"].x = torch.rand(papers, 4, generator=generator)
    graph["author"].num_nodes = authors
    graph["author"].age = torch.randint(90, (authors,), generator=generator)
    graph["author", "writes", "paper"].edge_index = torch.stack(
        [
            torch.randint(authors, (writes,), generator=generator),
            torch.randint(papers, (writes,), generator=generator),
        ]
    )
    graph["author", "writes", "paper"].edge_attr = torch.rand(writes, 2, generator=generator)
    graph["paper", "cites", "paper"].edge_index = torch.randint(
        papers, (2, papers), generator=generator
    )
    graph.y = torch.tensor([float(index)])
    return graph


def two_type_graphs(count: int = 8) -> list[HeteroData]:
    return [two_type_graph(i, 2 + i % 3, 1 + i % 4, (2 * i) % 5) for i in range(count)]


def assert_same_graph(got, expected) -> None:
    """Both have the same attributes in the same order, bit for bit."""
    assert type(got) is type(expected)
    stores = list(zip(got.stores, expected.stores, strict=True))
    for mine, theirs in stores:
        assert list(mine.keys()) == list(theirs.keys())
        for key in theirs:
            assert_same_value(mine[key], theirs[key], key)


def assert_same_value(got, expected, key) -> None:
    assert type(got) is type(expected), key
    if not isinstance(expected, Tensor):
        assert got == expected, key
        return
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape), key
    assert torch.equal(got, expected), key
