import json

import pytest
import torch
from _large_graphs import library, load_cora, random_graph, same_tensors
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE, SAGEConv, to_hetero

import torchkiln
from torchkiln.core import BatchTooLarge, Options, OptionsError
from torchkiln.data import LoaderError
from torchkiln.graphs import BatchSpec, PadValues
from torchkiln.graphs.loaders._neighbor_loader import FixedSizeNeighborLoader

# The same sums in another order.
PARITY = 1e-5


@pytest.fixture(scope="module")
def cora(tmp_path_factory):
    return load_cora(tmp_path_factory.mktemp("cora"))


@pytest.fixture(scope="module")
def graph():
    return random_graph()


def seeds_of(batch):
    return batch.n_id[batch.seed_mask]


@pytest.mark.parametrize("world", [1, 4])
def test_every_input_node_is_a_seed_once_an_epoch_over_all_processes(graph, world):
    inputs = torch.arange(0, 200, 3)
    loaders = [
        FixedSizeNeighborLoader(
            graph,
            [3, 2],
            batch_size=8,
            input_nodes=inputs,
            shuffle=True,
            options=Options(num_processes=world, process_id=rank, gradient_accumulation=2),
        )
        for rank in range(world)
    ]
    assert len({len(loader) for loader in loaders}) == 1
    for _ in range(2):
        batches = [batch for loader in loaders for batch in loader]
        seeds = torch.cat([seeds_of(batch) for batch in batches])
        assert torch.equal(seeds.sort().values, inputs)
        places = torch.cat([batch.input_id for batch in batches])
        assert torch.equal(inputs[places[places >= 0]], seeds)


def test_shapes_never_change_and_seeds_come_first(graph):
    loader = FixedSizeNeighborLoader(graph, [4, 3], batch_size=16, shuffle=True)
    spec = loader.spec
    batches = list(loader)
    assert len(batches) == len(loader) == 13
    assert [int(batch.seed_mask.sum()) for batch in batches] == [16] * 12 + [8]
    for batch in batches:
        assert batch.x.shape == (spec.num_nodes, 1)
        assert batch.edge_index.shape == (2, spec.num_edges)
        assert batch.input_id.shape == (16,)
        assert batch.graph_mask.tolist() == [True, False]
        assert batch.seed_mask[: int(batch.seed_mask.sum())].all()
        assert not (batch.seed_mask & ~batch.node_mask).any()


def test_real_entries_are_those_of_the_graph(graph):
    for batch in FixedSizeNeighborLoader(graph, [4, 3], batch_size=16):
        n_id, e_id = batch.n_id[batch.node_mask], batch.e_id[batch.edge_mask]
        assert torch.equal(batch.x[batch.node_mask], graph.x[n_id])
        assert torch.equal(batch.edge_attr[batch.edge_mask], graph.edge_attr[e_id])
        ends = batch.n_id[batch.edge_index[:, batch.edge_mask]]
        assert torch.equal(ends, graph.edge_index[:, e_id])


def test_missing_mini_batches_are_filler_only(graph):
    options = Options(device_iterations=3)
    loader = FixedSizeNeighborLoader(
        graph, [2], batch_size=64, input_nodes=torch.arange(70), options=options
    )
    (batch,) = loader
    assert batch.graph_mask.view(3, 2)[:, 0].tolist() == [True, True, False]
    assert batch.seed_mask.view(3, -1).sum(dim=1).tolist() == [64, 6, 0]
    assert (batch.input_id.view(3, 64)[2] == -1).all()


def test_too_large_samples_are_trimmed_but_never_their_seeds(graph):
    spec = BatchSpec(num_nodes=24, num_edges=20, num_graphs=2)
    loader = FixedSizeNeighborLoader(graph, [5, 5], spec, batch_size=16)
    seeds = torch.cat([seeds_of(batch) for batch in loader])
    assert torch.equal(seeds, torch.arange(200))
    for batch in loader:
        assert int(batch.node_mask.sum()) == 23
        assert torch.equal(
            batch.n_id[batch.edge_index[:, batch.edge_mask]],
            graph.edge_index[:, batch.e_id[batch.edge_mask]],
        )
    with pytest.raises(BatchTooLarge, match="num_nodes is 24"):
        list(FixedSizeNeighborLoader(graph, [5, 5], spec, batch_size=16, oversize="error"))
    with pytest.raises(BatchTooLarge, match="24 seed nodes do not fit into num_nodes=24"):
        FixedSizeNeighborLoader(graph, [5, 5], spec, batch_size=24)


MODES = [
    {"num_workers": 2},
    {"mode": "async"},
]


@pytest.mark.parametrize("mode", MODES, ids=["workers", "async"])
def test_resumed_loaders_give_the_same_bits(graph, mode):
    # Too small on purpose: what is trimmed must be the same, too.
    spec = BatchSpec(num_nodes=120, num_edges=120, num_graphs=2)
    arguments = {"spec": spec, "batch_size": 40, "shuffle": True, "seed": 3}
    first = FixedSizeNeighborLoader(graph, [4, 3], **arguments)
    batches, iterator = [], iter(first)
    batches += [next(iterator), next(iterator)]
    state = json.loads(json.dumps(first.state_dict()))
    batches += [*iterator, *first]
    second = FixedSizeNeighborLoader(graph, [4, 3], **arguments, **mode)
    second.load_state_dict(state)
    resumed = [*second, *second]
    second.terminate()
    assert len(resumed) == len(batches) - 2
    assert all(same_tensors(a, b) for a, b in zip(resumed, batches[2:], strict=True))


def test_samples_differ_from_epoch_to_epoch_and_seed_to_seed(graph):
    def first(seed):
        loader = FixedSizeNeighborLoader(graph, [3, 3], batch_size=16, seed=seed)
        return next(iter(loader)).n_id, next(iter(loader)).n_id

    one, next_epoch = first(0)
    assert torch.equal(one, first(0)[0])
    assert not torch.equal(one, next_epoch)
    assert not torch.equal(one[:100], first(1)[0][:100])


def test_the_global_generator_is_left_alone(graph):
    before = torch.get_rng_state()
    list(FixedSizeNeighborLoader(graph, [3], BatchSpec(40, 30, 2), batch_size=32, shuffle=True))
    assert torch.equal(before, torch.get_rng_state())


def test_a_state_of_other_sampling_is_refused(graph):
    spec = BatchSpec(150, 150, 2)
    state = FixedSizeNeighborLoader(graph, [3], spec, batch_size=32).state_dict()
    with pytest.raises(LoaderError, match=r"num_neighbors='\[3\]', this one has '\[4\]'"):
        FixedSizeNeighborLoader(graph, [4], spec, batch_size=32).load_state_dict(state)
    with pytest.raises(LoaderError, match="elements="):
        FixedSizeNeighborLoader(
            graph, [3], spec, batch_size=32, input_nodes=torch.arange(200).flip(0)
        ).load_state_dict(state)


def test_disjoint_samples_say_which_seed_a_node_belongs_to(graph):
    loader = FixedSizeNeighborLoader(graph, [3, 2], batch_size=8, disjoint=True)
    batch = next(iter(loader))
    assert batch.tree[:8].tolist() == list(range(8))
    assert (batch.tree[~batch.node_mask] == 8).all()
    ends = batch.tree[batch.edge_index]
    assert torch.equal(ends[0], ends[1])


def test_filler_values_do_not_reach_what_sampling_adds(graph):
    pad = PadValues(node=1e30, edge=-5.0, attributes={"y": 0})
    spec = BatchSpec(150, 150, 2)
    batch = next(iter(FixedSizeNeighborLoader(graph, [2], spec, batch_size=16, pad=pad)))
    filler = ~batch.node_mask
    assert (batch.x[filler] == torch.tensor(1e30)).all()
    assert not batch.seed_mask[filler].any()
    assert (batch.n_id[filler] == 0).all()


class Classifier(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gnn = GraphSAGE(1433, 16, num_layers=2, out_channels=7)

    def forward(self, x, edge_index, y, seed_mask):
        out = self.gnn(x, edge_index)
        target = torch.where(seed_mask, y, -100)
        return out, torch.nn.functional.cross_entropy(out, target)


def test_an_epoch_of_cora_compiles_once_and_visits_each_training_node_once(cora):
    loader = FixedSizeNeighborLoader(
        cora, [10, 5], batch_size=32, input_nodes=cora.train_mask, shuffle=True
    )
    model = Classifier()
    program = torchkiln.training_model(
        model,
        Options(backend="capture", show_progress=False),
        torch.optim.Adam(model.parameters()),
    )
    seeds = []
    for batch in loader:
        _, loss = program(batch.x, batch.edge_index, batch.y, batch.seed_mask)
        assert torch.isfinite(loss)
        seeds += seeds_of(batch).tolist()
    assert sorted(seeds) == cora.train_mask.nonzero().flatten().tolist()
    assert program.num_compiles == 1


def test_whole_neighbourhoods_give_the_output_of_the_whole_graph(cora):
    torch.manual_seed(0)
    model = GraphSAGE(1433, 16, num_layers=2, out_channels=7).eval()
    loader = FixedSizeNeighborLoader(
        cora,
        [-1, -1],
        BatchSpec(cora.num_nodes + 1, cora.num_edges, 2),
        batch_size=70,
        input_nodes=cora.train_mask,
        oversize="error",
    )
    with torch.no_grad():
        expected = model(cora.x, cora.edge_index)
        for batch in loader:
            out = model(batch.x, batch.edge_index)[batch.seed_mask]
            torch.testing.assert_close(out, expected[seeds_of(batch)], atol=PARITY, rtol=PARITY)


def test_heterogeneous_samples_have_constant_shapes_by_type():
    data = library()
    loader = FixedSizeNeighborLoader(
        data, [3, 2], batch_size=8, input_nodes=("paper", torch.arange(0, 60, 2)), shuffle=True
    )
    spec = loader.spec
    seeds = []
    for batch in loader:
        paper, cites = batch["paper"], batch["paper", "cites", "paper"]
        assert paper.x.shape == (spec.num_nodes["paper"], 1)
        assert batch["author"].x.shape == (spec.num_nodes["author"], 1)
        for key in data.edge_types:
            assert batch[key].edge_index.shape == (2, spec.num_edges[key])
        real = cites.edge_mask
        assert torch.equal(
            paper.n_id[cites.edge_index[:, real]],
            data["paper", "cites", "paper"].edge_index[:, cites.e_id[real]],
        )
        assert paper.seed_mask[: int(paper.seed_mask.sum())].all()
        assert paper.input_id.shape == (8,)
        seeds += paper.n_id[paper.seed_mask].tolist()
    assert sorted(seeds) == list(range(0, 60, 2))


def test_whole_heterogeneous_neighbourhoods_give_the_output_of_the_whole_graph():
    data = library()

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1 = SAGEConv((1, 1), 4)
            self.conv2 = SAGEConv((4, 4), 2)

        def forward(self, x, edge_index):
            return self.conv2(self.conv1(x, edge_index).relu(), edge_index)

    torch.manual_seed(0)
    model = to_hetero(Net(), data.metadata()).eval()
    # Whatever a two-hop sample reaches fits; the widest features are below 60.
    loader = FixedSizeNeighborLoader(data, [-1, -1], batch_size=8, input_nodes="paper")
    with torch.no_grad():
        expected = model(data.x_dict, data.edge_index_dict)["paper"]
        for batch in loader:
            out = model(batch.x_dict, batch.edge_index_dict)["paper"]
            seeds = batch["paper"].seed_mask
            torch.testing.assert_close(
                out[seeds], expected[batch["paper"].n_id[seeds]], atol=PARITY, rtol=PARITY
            )


def test_feature_and_graph_stores_are_loaded(graph):
    from torch_geometric.testing import MyFeatureStore, MyGraphStore

    features, edges = MyFeatureStore(), MyGraphStore()
    features.put_tensor(graph.x, group_name=None, attr_name="x", index=None)
    edges.put_edge_index(graph.edge_index, edge_type=None, layout="coo", size=(200, 200))
    loader = FixedSizeNeighborLoader(
        (features, edges), [3], batch_size=32, input_nodes=torch.arange(64)
    )
    for batch in loader:
        real = batch.node_mask
        assert torch.equal(batch.x[real], graph.x[batch.n_id[real]])


def test_times_of_the_seeds_limit_what_is_sampled(graph):
    data = graph.clone()
    data.when = torch.arange(200)
    loader = FixedSizeNeighborLoader(data, [5, 5], batch_size=16, time_attr="when")
    for batch in loader:
        limit = torch.cat([batch.n_id[:16], torch.tensor([0])])[batch.tree]
        assert (batch.when[batch.node_mask] <= limit[batch.node_mask]).all()


@pytest.mark.parametrize(
    ("data", "arguments", "message"),
    [
        ("library", {}, "needs input_nodes"),
        ("graph", {"batch_size": 0}, "at least one"),
        ("graph", {"input_nodes": torch.zeros(200, dtype=torch.bool)}, "nothing to load"),
        ("graph", {"spec": BatchSpec(99, 99, 4)}, "num_graphs=2"),
        ("graph", {"oversize": "drop"}, "got 'drop'"),
    ],
)
def test_refused_arguments(graph, data, arguments, message):
    given = {"batch_size": 4, **arguments}
    with pytest.raises(OptionsError, match=message):
        FixedSizeNeighborLoader(library() if data == "library" else graph, [2], **given)


def ring(num_nodes=40):
    nodes = torch.arange(num_nodes)
    return Data(x=nodes.float()[:, None], edge_index=torch.stack([nodes, (nodes + 1) % num_nodes]))


def test_a_mask_of_another_graph_is_refused():
    mask = torch.ones(5, dtype=torch.bool)
    with pytest.raises(OptionsError, match=r"mask of shape \[5\], but there are 40 nodes"):
        FixedSizeNeighborLoader(ring(), [2], input_nodes=mask, batch_size=2)


def test_a_batch_may_be_larger_than_all_seeds():
    loader = FixedSizeNeighborLoader(ring(), [2], batch_size=100)
    (batch,) = loader
    assert batch.x[batch.seed_mask].flatten().sort().values.tolist() == list(range(40))
