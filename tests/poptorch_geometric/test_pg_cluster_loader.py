import shutil
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.loader import ClusterData, ClusterLoader
from torch_geometric.nn import SAGEConv

import poptorch
from poptorch_geometric import FixedSizeOptions, OverSizeStrategy, pyg_cluster_loader
from poptorch_geometric.cluster_loader import FixedSizeClusterLoader

CORA = Path(__file__).resolve().parents[3] / "shared" / "data" / "Cora"


@pytest.fixture(scope="module")
def graph():
    generator = torch.Generator().manual_seed(0)
    return Data(
        x=torch.arange(120.0).unsqueeze(1),
        edge_index=torch.randint(120, (2, 600), generator=generator),
        edge_attr=torch.arange(600.0),
        y=torch.arange(120) % 3,
    )


@pytest.fixture(scope="module")
def cluster_data(graph):
    return ClusterData(graph, num_parts=12, log=False)


SIZES = {"num_nodes": 60, "num_edges": 250}


def options_for(device_iterations=1, accumulation=1):
    options = poptorch.Options().deviceIterations(device_iterations)
    options.Training.gradientAccumulation(accumulation)
    return options


def test_pygs_clusters_work_without_metis(graph, cluster_data):
    assert len(cluster_data) == 12
    nodes = torch.cat([cluster_data[i].x for i in range(12)]).flatten()
    assert torch.equal(nodes.sort().values, torch.arange(120.0))
    merged = next(iter(ClusterLoader(cluster_data, batch_size=12)))
    assert merged.num_edges == graph.num_edges


def test_a_working_metis_is_never_replaced(graph, monkeypatch):
    from torch_geometric import typing
    from torch_geometric.loader import cluster

    class Metis:
        @staticmethod
        def metis(indptr, index, num_parts, recursive):
            return torch.arange(120) % num_parts

    monkeypatch.setattr(typing, "WITH_METIS", True)
    monkeypatch.setattr(cluster, "pyg_lib", type("PygLib", (), {"partition": Metis}))
    found = ClusterData(graph, num_parts=3, log=False)
    assert torch.equal(found[1].x.flatten().sort().values, torch.arange(1.0, 120, 3))


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("device_iterations", [1, 2])
def test_items_are_merged_clusters_of_constant_shape(cluster_data, batch_size, device_iterations):
    loader = FixedSizeClusterLoader(
        cluster_data,
        FixedSizeOptions(**SIZES),
        batch_size=batch_size,
        options=options_for(device_iterations),
    )
    plain = list(ClusterLoader(cluster_data, batch_size=batch_size))
    items = list(loader)
    assert len(items) == len(loader) == 12 // (batch_size * device_iterations)
    assert loader.combinedBatchSize == batch_size * device_iterations
    for number, item in enumerate(items):
        assert item.x.shape == (60 * device_iterations, 1)
        assert item.edge_index.shape == (2 * device_iterations, 250)
        assert (item.num_nodes, item.num_edges, item.num_graphs) == (60, 250, 2)
        expected = plain[number * device_iterations]
        num_nodes, num_edges = expected.num_nodes, expected.num_edges
        assert torch.equal(item.x[:num_nodes], expected.x)
        assert torch.equal(item.edge_index[:2, :num_edges], expected.edge_index)
        assert torch.equal(item.edge_attr[:num_edges], expected.edge_attr)
        assert (item.edge_index[:2, num_edges:] == num_nodes).all()
        assert item.nodes_mask[:60].sum() == num_nodes
        assert item.edges_mask[:250].sum() == num_edges
        assert item.graphs_mask.tolist() == [True, False] * device_iterations


def test_masks_can_be_left_out(cluster_data):
    sizes = FixedSizeOptions(**SIZES)
    item = next(iter(FixedSizeClusterLoader(cluster_data, sizes, add_pad_masks=False)))
    assert not {"nodes_mask", "edges_mask", "graphs_mask"} & set(item.keys())


def test_too_large_sub_graphs_are_trimmed_or_refused(cluster_data):
    sizes = FixedSizeOptions(num_nodes=15, num_edges=10)
    for item in FixedSizeClusterLoader(cluster_data, sizes, batch_size=4):
        assert int(item.nodes_mask.sum()) == 14
        assert int(item.edges_mask.sum()) <= 10
    loader = FixedSizeClusterLoader(
        cluster_data, sizes, batch_size=4, over_size_strategy=OverSizeStrategy.Error
    )
    with pytest.raises(RuntimeError, match="don't allocate enough space for the number of nodes"):
        next(iter(loader))


@pytest.mark.parametrize("name", ["collate_fn", "batch_sampler", "shuffle", "exclude_keys"])
def test_unsupported_arguments(cluster_data, name):
    with pytest.raises(AssertionError, match=name):
        FixedSizeClusterLoader(cluster_data, FixedSizeOptions(**SIZES), **{name: None})


def test_num_graphs_must_be_two(cluster_data):
    with pytest.raises(AssertionError, match="must be 2; got 3"):
        FixedSizeClusterLoader(cluster_data, FixedSizeOptions(**SIZES, num_graphs=3))


def test_the_device_independent_loader_keeps_the_remainder(cluster_data):
    loader = pyg_cluster_loader.FixedSizeClusterLoader(
        cluster_data, FixedSizeOptions(**SIZES), batch_size=5
    )
    assert [int(batch.num_graphs) for batch in loader] == [2, 2, 2]
    names = [cls.__module__.split(".")[0] for cls in FixedSizeClusterLoader.__mro__[:3]]
    assert names == ["poptorch_geometric", "poptorch_geometric", "poptorch"]


class Net(torch.nn.Module):
    def __init__(self, num_features, num_classes):
        super().__init__()
        self.conv = SAGEConv(num_features, num_classes)

    def forward(self, x, edge_index, y, mask):
        out = self.conv(x, edge_index)
        target = torch.where(mask, y, -100)
        return out, torch.nn.functional.cross_entropy(out, target)


def test_the_tutorials_way_on_cora(tmp_path):
    if not CORA.exists():
        pytest.skip(f"the raw files of Cora are not at {CORA}")
    from torch_geometric.datasets import Planetoid

    shutil.copytree(CORA, tmp_path / "Cora" / "raw")
    data = Planetoid(str(tmp_path), "Cora")[0]
    cluster_data = ClusterData(data, num_parts=20, log=False)
    sizes = FixedSizeOptions.from_loader(ClusterLoader(cluster_data, batch_size=5), 10)
    assert sizes.num_graphs == 2
    options = options_for(device_iterations=2, accumulation=2)
    loader = FixedSizeClusterLoader(cluster_data, sizes, batch_size=5, options=options)
    net = Net(1433, 7)
    model = poptorch.trainingModel(net, options, poptorch.optim.Adam(net.parameters()))
    (item,) = loader
    assert item.x.shape == (4 * sizes.num_nodes, 1433)
    _, loss = model(item.x, item.edge_index, item.y, item.train_mask & item.nodes_mask)
    assert torch.isfinite(loss).all()
    assert int(item.nodes_mask.sum()) > 0.95 * data.num_nodes
