import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import LinkNeighborLoader, NeighborLoader
from torch_geometric.nn import SAGEConv

import poptorch
from poptorch_geometric import FixedSizeOptions, OverSizeStrategy
from poptorch_geometric.neighbor_loader import (
    FixedSizeNeighborLoader,
    PyGFixedSizeNeighborLoader,
)


@pytest.fixture(scope="module")
def graph():
    generator = torch.Generator().manual_seed(0)
    return Data(
        x=torch.arange(100.0).unsqueeze(1),
        edge_index=torch.randint(100, (2, 500), generator=generator),
        edge_attr=torch.arange(500.0),
        y=torch.arange(100) % 3,
        train_mask=torch.arange(100) % 2 == 0,
    )


@pytest.fixture(scope="module")
def hetero():
    generator = torch.Generator().manual_seed(0)
    data = HeteroData()
    data["paper"].x = torch.arange(40.0).unsqueeze(1)
    data["paper"].y = torch.arange(40) % 3
    data["author"].x = torch.arange(15.0).unsqueeze(1)
    ends = torch.stack([torch.randint(n, (90,), generator=generator) for n in (15, 40)])
    data["author", "writes", "paper"].edge_index = ends
    data["paper", "rev_writes", "author"].edge_index = ends.flip(0)
    return data


SIZES = {"num_nodes": 90, "num_edges": 120}


def options_for(device_iterations):
    return poptorch.Options().deviceIterations(device_iterations)


def test_pygs_neighbor_loader_works_without_compiled_packages(graph):
    loader = NeighborLoader(graph, [3, 2], batch_size=10, input_nodes=graph.train_mask)
    for batch in loader:
        assert torch.equal(batch.n_id[:10], batch.input_id)
        assert torch.equal(graph.edge_index[:, batch.e_id], batch.n_id[batch.edge_index])
    sizes = FixedSizeOptions.from_loader(loader, sample_limit=5)
    assert sizes.num_graphs == 2


def test_pygs_link_loader_works_without_compiled_packages(graph):
    batch = next(iter(LinkNeighborLoader(graph, [3], batch_size=16, neg_sampling_ratio=1.0)))
    assert batch.edge_label_index.shape == (2, 32)


@pytest.mark.parametrize("device_iterations", [1, 2])
def test_items_have_constant_shapes_and_seeds_first(graph, device_iterations):
    loader = FixedSizeNeighborLoader(
        graph,
        [3, 2],
        input_nodes=graph.train_mask,
        batch_size=8,
        fixed_size_options=FixedSizeOptions(**SIZES),
        options=options_for(device_iterations),
    )
    items = list(loader)
    assert isinstance(loader.neighbour_loader, NeighborLoader)
    assert len(items) == len(loader) == 50 // (8 * device_iterations)
    for item in items:
        assert item.x.shape == (90 * device_iterations, 1)
        assert item.edge_index.shape == (2 * device_iterations, 120)
        assert item.input_id.shape == (8 * device_iterations,)
        assert (item.num_nodes, item.num_edges, item.num_graphs) == (90, 120, 2)
        first = slice(0, 8)
        assert torch.equal(item.n_id[first], item.input_id[first])
        assert item.nodes_mask[first].all()
        real = item.edges_mask[:120]
        ends = item.n_id[item.edge_index[:2, real]]
        assert torch.equal(ends, graph.edge_index[:, item.e_id[:120][real]])
        assert torch.equal(item.edge_attr[:120][real], graph.edge_attr[item.e_id[:120][real]])
    seeds = torch.cat([item.input_id for item in items])
    assert len(seeds.unique()) == len(seeds)


def test_seeds_survive_trimming(graph):
    sizes = FixedSizeOptions(num_nodes=12, num_edges=6)
    loader = FixedSizeNeighborLoader(graph, [5, 5], batch_size=10, fixed_size_options=sizes)
    for item in loader:
        assert torch.equal(item.n_id[:10], item.input_id)
        assert int(item.nodes_mask.sum()) == 11
    loader = FixedSizeNeighborLoader(
        graph,
        [5, 5],
        batch_size=10,
        fixed_size_options=sizes,
        over_size_strategy=OverSizeStrategy.Error,
    )
    with pytest.raises(RuntimeError, match="don't allocate enough space for the number of nodes"):
        next(iter(loader))


def test_sizes_are_derived_from_samples(graph):
    loader = FixedSizeNeighborLoader(graph, [2], input_nodes=torch.arange(20), batch_size=5)
    assert loader.fixed_size_options.num_graphs == 2
    assert 5 < loader.fixed_size_options.num_nodes <= 5 * 3 + 1
    assert len(list(loader)) == 4


def test_native_and_fixed_size_collation_can_be_called_apart(graph):
    loader = PyGFixedSizeNeighborLoader(
        graph, [3], batch_size=4, fixed_size_options=FixedSizeOptions(**SIZES)
    )
    native = loader.nativeCollate([7, 3, 9, 1])
    assert native.n_id[:4].tolist() == [7, 3, 9, 1]
    keys = set(native.keys())
    fixed = loader.fixedSizeCollate(native)
    assert set(native.keys()) == keys
    assert fixed.num_graphs == 2
    assert fixed.x.shape == (90, 1)
    assert torch.equal(fixed.x[: native.num_nodes], native.x)
    assert fixed.input_id.tolist() == [7, 3, 9, 1]


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        ([[7, 3, 9, 1]], [7, 3, 9, 1]),
        ([torch.tensor([7, 3, 9, 1])], [7, 3, 9, 1]),
        ([torch.tensor([7, 3]), [9], 1], [7, 3, 9, 1]),
        (torch.tensor([[7, 3], [9, 1]]), [7, 3, 9, 1]),
        (range(4), [0, 1, 2, 3]),
        ([torch.arange(100) < 4], [0, 1, 2, 3]),
        (torch.arange(100) < 4, [0, 1, 2, 3]),
    ],
    ids=["list", "tensor", "several", "matrix", "range", "list of masks", "mask"],
)
def test_native_collation_takes_lists_of_indices(graph, index, expected):
    loader = PyGFixedSizeNeighborLoader(
        graph, [3], batch_size=4, fixed_size_options=FixedSizeOptions(**SIZES)
    )
    native = loader.nativeCollate(index)
    assert native.batch_size == 4
    assert native.n_id[:4].tolist() == expected
    assert native.x[:4].flatten().tolist() == graph.x[expected].flatten().tolist()
    assert loader.fixedSizeCollate(native).x.shape == (90, 1)


def test_the_device_independent_loader_shuffles_and_keeps_the_remainder(graph):
    loader = PyGFixedSizeNeighborLoader(
        graph, [2], batch_size=30, fixed_size_options=FixedSizeOptions(**SIZES), shuffle=True
    )
    seeds = torch.cat([batch.input_id for batch in loader])
    assert sorted(seeds.tolist()) == list(range(100))
    assert seeds.tolist() != list(range(100))


def test_masks_and_keys_can_be_left_out(graph):
    loader = FixedSizeNeighborLoader(
        graph,
        [2],
        batch_size=4,
        fixed_size_options=FixedSizeOptions(**SIZES),
        add_pad_masks=False,
        exclude_keys=["e_id", "y"],
    )
    assert not {"nodes_mask", "e_id", "y"} & set(next(iter(loader)).keys())


@pytest.mark.parametrize("device_iterations", [1, 2])
def test_heterogeneous_items(hetero, device_iterations):
    loader = FixedSizeNeighborLoader(
        hetero,
        [3, 2],
        input_nodes=("paper", torch.arange(0, 40, 2)),
        batch_size=5,
        fixed_size_options=FixedSizeOptions(num_nodes=50, num_edges=60),
        options=options_for(device_iterations),
    )
    assert len(loader) == 4 // device_iterations
    for item in loader:
        paper = item["paper"]
        assert paper.x.shape == item["author"].x.shape == (50 * device_iterations, 1)
        assert item["author", "writes", "paper"].edge_index.shape == (2 * device_iterations, 60)
        assert paper.input_id.shape == (5 * device_iterations,)
        # Not a mask: places in the given nodes.
        assert torch.equal(paper.n_id[:5], paper.input_id[:5] * 2)
        assert paper.batch_size == 5
        assert paper.nodes_mask.dtype is torch.bool
        assert item.num_graphs == 2


def test_heterogeneous_seeds_survive_trimming(hetero):
    sizes = FixedSizeOptions(num_nodes={"paper": 7, "author": 4}, num_edges=5)
    loader = FixedSizeNeighborLoader(
        hetero, [4, 4], input_nodes=("paper", None), batch_size=6, fixed_size_options=sizes
    )
    for item in loader:
        assert torch.equal(item["paper"].n_id[:6], item["paper"].input_id)
        assert int(item["author"].nodes_mask.sum()) <= 3


class Net(torch.nn.Module):
    def __init__(self, batch_size):
        super().__init__()
        self.conv1 = SAGEConv(1, 8)
        self.conv2 = SAGEConv(8, 3)
        self.batch_size = batch_size

    def forward(self, x, edge_index, y):
        out = self.conv2(self.conv1(x, edge_index).relu(), edge_index)
        out, y = out[: self.batch_size], y[: self.batch_size]
        return out, torch.nn.functional.cross_entropy(out, y)


def test_a_model_trains_on_an_epoch(graph):
    options = options_for(2)
    loader = FixedSizeNeighborLoader(
        graph,
        [3, 2],
        batch_size=8,
        fixed_size_options=FixedSizeOptions(**SIZES),
        options=options,
        shuffle=True,
    )
    net = Net(8)
    model = poptorch.trainingModel(net, options, poptorch.optim.Adam(net.parameters()))
    for item in loader:
        _, loss = model(item.x / 100, item.edge_index, item.y)
        assert torch.isfinite(loss).all()


def test_an_asynchronous_loader_gives_every_seed(graph):
    loader = FixedSizeNeighborLoader(
        graph,
        [2],
        batch_size=25,
        fixed_size_options=FixedSizeOptions(**SIZES),
        mode=poptorch.DataLoaderMode.Async,
    )
    seeds = torch.cat([item.input_id.clone() for item in loader])
    loader.terminate()
    assert sorted(seeds.tolist()) == list(range(100))


@pytest.mark.parametrize("missing", ["b", ("b", "to", "a")])
def test_a_sampled_type_without_a_size_is_named(missing):
    graph = HeteroData()
    graph["a"].x, graph["b"].x = torch.randn(6, 2), torch.randn(6, 2)
    ends = torch.arange(6)
    graph["b", "to", "a"].edge_index = torch.stack([ends, ends.flip(0)])
    nodes, edges = {"a": 20, "b": 20}, {("b", "to", "a"): 20}
    sizes = nodes if isinstance(missing, str) else edges
    sizes.pop(missing)
    sizes["other"] = 3
    loader = FixedSizeNeighborLoader(
        graph, [2], input_nodes="a", batch_size=2, fixed_size_options=FixedSizeOptions(nodes, edges)
    )
    with pytest.raises(AssertionError, match="'b'"):
        next(iter(loader))
