import json

import pytest
import torch
from _large_graphs import load_cora, random_graph, same_tensors
from torch_geometric.loader import ClusterData
from torch_geometric.nn import GraphSAGE

import torchkiln
from torchkiln.core import BatchTooLarge, Options, OptionsError
from torchkiln.data import LoaderError
from torchkiln.graphs import BatchSpec, PadValues
from torchkiln.graphs.loaders._cluster_loader import FixedSizeClusterLoader
from torchkiln.graphs.sampling._clusters import Clusters
from torchkiln.graphs.sampling._provide_sampling import provide_partition


@pytest.fixture(scope="module")
def cora(tmp_path_factory):
    return load_cora(tmp_path_factory.mktemp("cora"))


@pytest.fixture(scope="module")
def graph():
    return random_graph()


@pytest.fixture(scope="module")
def clusters(graph):
    return Clusters.partition(graph, 10)


def real_nodes(batches):
    return torch.cat([batch.n_id[batch.node_mask] for batch in batches])


@pytest.mark.parametrize("clusters_per_batch", [1, 3])
@pytest.mark.parametrize("world", [1, 4])
def test_every_node_comes_once_an_epoch_over_all_processes(clusters, clusters_per_batch, world):
    loaders = [
        FixedSizeClusterLoader(
            clusters,
            BatchSpec(num_nodes=201, num_edges=1200, num_graphs=2),
            clusters_per_batch=clusters_per_batch,
            shuffle=True,
            options=Options(num_processes=world, process_id=rank, device_iterations=2),
        )
        for rank in range(world)
    ]
    assert len({len(loader) for loader in loaders}) == 1
    for _ in range(2):
        batches = [batch for loader in loaders for batch in loader]
        assert len(batches) == world * len(loaders[0])
        assert torch.equal(real_nodes(batches).sort().values, torch.arange(200))


def test_automatic_sizes_fit_every_single_cluster_exactly(clusters):
    loader = FixedSizeClusterLoader(clusters, oversize="error")
    sizes = [clusters.measure([i]) for i in range(10)]
    assert loader.spec.num_nodes == max(nodes for nodes, _ in sizes) + 1
    assert loader.spec.num_edges == max(edges for _, edges in sizes)
    assert torch.equal(real_nodes(loader).sort().values, torch.arange(200))


def test_shapes_never_change_and_filler_is_marked(clusters):
    loader = FixedSizeClusterLoader(clusters, clusters_per_batch=3, shuffle=True)
    spec = loader.spec
    for batch in loader:
        assert batch.x.shape == (spec.num_nodes, 1)
        assert batch.edge_index.shape == (2, spec.num_edges)
        assert batch.edge_attr.shape == (spec.num_edges,)
        assert batch.graph_mask.tolist() == [True, False]
        assert batch.ptr.tolist() == [0, int(batch.node_mask.sum()), spec.num_nodes]
        assert not batch.node_mask[-1]
        filler = batch.edge_index[:, ~batch.edge_mask]
        assert (filler == batch.ptr[1]).all()


def test_a_batch_is_the_merged_sub_graph(graph, clusters):
    (batch,) = FixedSizeClusterLoader(clusters, clusters_per_batch=10)
    merged = clusters.merge(range(10))
    assert torch.equal(batch.x[batch.node_mask], merged.x)
    assert torch.equal(batch.edge_index[:, batch.edge_mask], merged.edge_index)
    assert torch.equal(batch.edge_attr[batch.edge_mask], merged.edge_attr)


def test_missing_mini_batches_are_filler_only(clusters):
    options = Options(device_iterations=4)
    loader = FixedSizeClusterLoader(clusters, clusters_per_batch=3, options=options)
    (batch,) = loader
    assert batch.graph_mask.view(4, 2).tolist() == [[True, False]] * 4
    options = Options(device_iterations=3)
    batches = list(FixedSizeClusterLoader(clusters, clusters_per_batch=3, options=options))
    assert len(batches) == 2
    last = batches[1]
    assert last.graph_mask.view(3, 2).tolist() == [[True, False], [False] * 2, [False] * 2]
    num_nodes = loader.spec.num_nodes
    assert not last.node_mask[num_nodes:].any()
    assert last.edge_index.shape == (6, loader.spec.num_edges)


def test_order_is_a_function_of_seed_and_epoch(clusters):
    def order(epoch, **arguments):
        loader = FixedSizeClusterLoader(clusters, shuffle=True, **arguments)
        loader.set_epoch(epoch)
        return real_nodes(loader).tolist()

    assert order(0) == order(0)
    assert order(0) != order(1)
    assert order(0) != order(0, seed=1)


@pytest.mark.parametrize("mode", [{"num_workers": 2}, {"mode": "async"}], ids=["workers", "async"])
def test_resumed_loaders_give_the_same_bits(clusters, mode):
    # Too small on purpose: what is trimmed must be the same, too.
    spec = BatchSpec(num_nodes=50, num_edges=60, num_graphs=2)
    arguments = {"spec": spec, "clusters_per_batch": 3, "shuffle": True, "seed": 3}
    first = FixedSizeClusterLoader(clusters, **arguments)
    batches, iterator = [], iter(first)
    batches += [next(iterator), next(iterator)]
    state = json.loads(json.dumps(first.state_dict()))
    batches += [*iterator, *first]
    second = FixedSizeClusterLoader(clusters, **arguments, **mode)
    second.load_state_dict(state)
    resumed = [*second, *second]
    second.terminate()
    assert len(resumed) == len(batches) - 2
    assert all(same_tensors(a, b) for a, b in zip(resumed, batches[2:], strict=True))


def test_a_state_of_other_clusters_is_refused(graph, clusters):
    spec = BatchSpec(60, 300, 2)
    state = FixedSizeClusterLoader(clusters, spec).state_dict()
    other = Clusters(graph, torch.arange(200) % 10)
    with pytest.raises(LoaderError, match="elements="):
        FixedSizeClusterLoader(other, spec).load_state_dict(state)


def test_too_large_groups_are_trimmed_or_refused(clusters):
    spec = BatchSpec(num_nodes=30, num_edges=40, num_graphs=2)
    for batch in FixedSizeClusterLoader(clusters, spec, clusters_per_batch=5):
        assert int(batch.node_mask.sum()) == 29
    with pytest.raises(BatchTooLarge, match="num_nodes is 30"):
        list(FixedSizeClusterLoader(clusters, spec, clusters_per_batch=5, oversize="error"))


def test_attributes_can_be_padded_and_left_out(clusters):
    pad = PadValues(node=7.0)
    (batch,) = FixedSizeClusterLoader(
        clusters,
        BatchSpec(300, 1300, 2),
        clusters_per_batch=10,
        pad=pad,
        masks=False,
        exclude_keys=["y"],
    )
    assert (batch.x[200:] == 7).all()
    assert "y" not in batch
    assert "node_mask" not in batch


def test_pygs_clusters_are_taken(graph):
    provide_partition()
    cluster_data = ClusterData(graph, 5, log=False)
    loader = FixedSizeClusterLoader(cluster_data)
    for i, batch in enumerate(loader):
        expected = cluster_data[i]
        assert torch.equal(batch.x[batch.node_mask], expected.x)
        assert torch.equal(batch.edge_index[:, batch.edge_mask], expected.edge_index)
        assert torch.equal(batch.edge_attr[batch.edge_mask], expected.edge_attr)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "needs num_parts"),
        ({"num_parts": 4, "spec": BatchSpec(9, 9, 3)}, "num_graphs=2"),
        ({"num_parts": 4, "clusters_per_batch": 0}, "at least one cluster"),
        ({"num_parts": 4, "oversize": "skip"}, "got 'skip'"),
    ],
)
def test_refused_arguments(graph, arguments, message):
    with pytest.raises(OptionsError, match=message):
        FixedSizeClusterLoader(graph, **arguments)


def test_clusters_and_num_parts_contradict_each_other(clusters):
    with pytest.raises(OptionsError, match="num_parts=3 was given together with 10 clusters"):
        FixedSizeClusterLoader(clusters, num_parts=3)


class Classifier(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gnn = GraphSAGE(1433, 16, num_layers=2, out_channels=7)

    def forward(self, x, edge_index, y, train_mask):
        out = self.gnn(x, edge_index)
        target = torch.where(train_mask, y, -100)
        return out, torch.nn.functional.cross_entropy(out, target)


def test_an_epoch_of_cora_compiles_once(cora):
    loader = FixedSizeClusterLoader(cora, num_parts=6, shuffle=True)
    model = Classifier()
    program = torchkiln.training_model(
        model,
        Options(backend="capture", show_progress=False),
        torch.optim.Adam(model.parameters()),
    )
    seen = 0
    for batch in loader:
        _, loss = program(batch.x, batch.edge_index, batch.y, batch.train_mask)
        assert torch.isfinite(loss)
        seen += int(batch.train_mask.sum())
    assert seen == 140
    assert program.num_compiles == 1
