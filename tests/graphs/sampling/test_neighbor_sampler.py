import pytest
import torch
from _large_graphs import library, random_graph, same_tensors
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import LinkNeighborLoader, NeighborLoader
from torch_geometric.sampler import NodeSamplerInput

from torchkiln.core import OptionsError
from torchkiln.graphs.sampling._neighbors import NeighborSampler

SEEDS = torch.tensor([3, 50, 7, 120])
# Four standard deviations of a binomial: a right sampler fails once in 16,000 draws of the seed.
SIGMAS = 4


def sample(data, num_neighbors, nodes=SEEDS, kind=None, time=None, seed=0, **arguments):
    sampler = NeighborSampler(data, num_neighbors, seed=seed, **arguments)
    inputs = NodeSamplerInput(torch.arange(len(nodes)), nodes, time, kind)
    return sampler.sample_from_nodes(inputs)


def star(num_leaves, **attributes):
    """Return a graph of one target, node 0, with many sources."""
    edge_index = torch.stack(
        [torch.arange(1, num_leaves + 1), torch.zeros(num_leaves, dtype=torch.long)]
    )
    return Data(edge_index=edge_index, num_nodes=num_leaves + 1, **attributes)


def in_edges(data, nodes):
    return torch.isin(data.edge_index[1], nodes).nonzero().flatten()


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("disjoint", [False, True])
def test_sampled_edges_are_edges_of_the_graph_and_seeds_come_first(replace, disjoint):
    data = random_graph()
    sampler = NeighborSampler(data, [4, 3, 2], replace=replace, disjoint=disjoint, seed=1)
    out = sampler.sample_from_nodes(NodeSamplerInput(None, SEEDS))
    assert torch.equal(out.node[:4], SEEDS)
    original = sampler.edge_permutation[out.edge]
    assert torch.equal(data.edge_index[:, original], out.node[torch.stack([out.row, out.col])])
    assert sum(out.num_sampled_nodes) == len(out.node)
    assert sum(out.num_sampled_edges) == len(out.edge)
    # Nodes of a hop get their neighbours in the next one.
    last = torch.tensor(out.num_sampled_nodes).cumsum(0)
    assert out.col[: out.num_sampled_edges[0]].max() < last[0]
    assert out.row.max() < len(out.node)
    if disjoint:
        assert torch.equal(out.batch[out.row], out.batch[out.col])
        pairs = torch.stack([out.batch, out.node])
        assert pairs.unique(dim=1).shape[1] == len(out.node)
    else:
        assert len(out.node.unique()) == len(out.node)


@pytest.mark.parametrize("count", [0, 1, 3, 100])
def test_each_node_gets_as_many_neighbours_as_asked_for_or_all(count):
    data = random_graph()
    out = sample(data, [count])
    degrees = data.edge_index[1].bincount(minlength=200)[SEEDS]
    assert torch.equal(out.col.bincount(minlength=4), degrees.clamp(max=count))
    assert len(out.edge.unique()) == len(out.edge)
    replaced = sample(data, [count], replace=True)
    assert torch.equal(replaced.col.bincount(minlength=4), (degrees > 0) * count)


def test_minus_one_takes_the_whole_neighbourhood():
    data = random_graph()
    sampler = NeighborSampler(data, [-1, -1])
    out = sampler.sample_from_nodes(NodeSamplerInput(None, SEEDS))
    first = in_edges(data, SEEDS)
    reached = torch.cat([SEEDS, data.edge_index[0, first]]).unique()
    assert torch.equal(
        sampler.edge_permutation[out.edge].sort().values, in_edges(data, reached).sort().values
    )


def test_induced_sub_graphs_have_all_edges_between_their_nodes():
    data = random_graph()
    out = sample(data, [3, 3], subgraph_type="induced")
    inside = torch.isin(data.edge_index, out.node).all(dim=0)
    assert len(out.edge) == int(inside.sum())
    drawn = sample(data, [3, 3])
    assert torch.equal(drawn.node, out.node)
    assert len(drawn.edge) < len(out.edge)


def test_bidirectional_sub_graphs_have_every_edge_in_both_directions():
    out = sample(random_graph(), [3, 3], subgraph_type="bidirectional")
    edges = set(zip(out.row.tolist(), out.col.tolist(), strict=True))
    assert edges == {(b, a) for a, b in edges}


def test_repeated_seeds_keep_their_places():
    seeds = torch.tensor([5, 9, 5])
    out = sample(random_graph(), [2], nodes=seeds)
    assert torch.equal(out.node[:3], seeds)
    assert set(out.col.tolist()) <= {0, 1, 2}


@pytest.mark.parametrize(
    ("num_leaves", "count"), [(20, 3), (20, 15), (200, 70)], ids=["few", "most", "many"]
)
def test_drawing_without_replacement_is_uniform(num_leaves, count):
    seeds = torch.zeros(3000, dtype=torch.long)
    out = sample(star(num_leaves), [count], nodes=seeds, seed=5)
    hits = out.edge.bincount(minlength=num_leaves)
    share = count / num_leaves
    deviation = (len(seeds) * share * (1 - share)) ** 0.5
    # The largest of num_leaves deviations, so more than for a single one.
    assert (hits - len(seeds) * share).abs().max() < (SIGMAS + 1) * deviation
    pairs = out.edge.view(len(seeds), count)
    assert (pairs.sort(dim=1).values.diff(dim=1) > 0).all()


def test_pairs_are_drawn_independently():
    seeds = torch.zeros(6000, dtype=torch.long)
    drawn = sample(star(6), [2], nodes=seeds, seed=2).edge.view(-1, 2).sort(dim=1).values
    hits = (drawn[:, 0] * 6 + drawn[:, 1]).bincount(minlength=36)
    hits = hits[hits > 0]
    assert len(hits) == 15  # all pairs of 6
    expected = 6000 / 15
    assert (hits - expected).abs().max() < (SIGMAS + 1) * (expected * 14 / 15) ** 0.5


@pytest.mark.parametrize("replace", [False, True])
def test_weights_decide_how_often_an_edge_is_drawn(replace):
    weights = torch.tensor([1.0, 2.0, 0.0, 5.0])
    seeds = torch.zeros(4000, dtype=torch.long)
    out = sample(star(4, w=weights), [1], nodes=seeds, weight_attr="w", replace=replace)
    hits = out.edge.bincount(minlength=4)
    share = weights / weights.sum()
    assert hits[2] == 0
    assert ((hits - 4000 * share).abs() <= SIGMAS * (4000 * share * (1 - share)).sqrt()).all()


def test_edges_of_weight_zero_are_never_drawn():
    out = sample(star(4, w=torch.tensor([0.0, 1, 0, 2])), [4], SEEDS[:1] * 0, weight_attr="w")
    assert out.edge.sort().values.tolist() == [1, 3]


@pytest.mark.parametrize("level", ["node", "edge"])
def test_neighbours_are_not_later_than_their_seed(level):
    data = random_graph()
    size = data.num_nodes if level == "node" else data.num_edges
    data.when = torch.randint(100, (size,), generator=torch.Generator().manual_seed(1))
    limit = torch.tensor([20, 80, 50, 99])
    sampler = NeighborSampler(data, [-1, -1], time_attr="when", seed=0)
    out = sampler.sample_from_nodes(NodeSamplerInput(None, SEEDS, limit))
    edges = sampler.edge_permutation[out.edge]
    sources = data.edge_index[0, edges]
    times = data.when[sources] if level == "node" else data.when[edges]
    assert (times <= limit[out.batch[out.col]]).all()
    # All that may be there are there.
    for tree, node in enumerate(SEEDS):
        around = in_edges(data, node)
        allowed = data.when[data.edge_index[0, around]] if level == "node" else data.when[around]
        assert int((out.col == tree).sum()) == int((allowed <= limit[tree]).sum())


def test_the_last_neighbours_in_time_can_be_taken():
    times = torch.tensor([5, 1, 9, 3, 7, 2])
    data = star(6, when=times)
    out = sample(
        data,
        [2],
        nodes=torch.tensor([0]),
        time=torch.tensor([7]),
        time_attr="when",
        temporal_strategy="last",
    )
    assert sorted(times[out.node[out.row] - 1].tolist()) == [5, 7]


def test_samples_are_functions_of_seed_epoch_and_nodes():
    data = random_graph()
    sampler = NeighborSampler(data, [3, 3], seed=7)
    inputs = NodeSamplerInput(None, SEEDS)
    first, again = sampler.sample_from_nodes(inputs), sampler.sample_from_nodes(inputs)
    assert torch.equal(first.edge, again.edge)
    sampler.set_epoch(1)
    assert not torch.equal(first.edge, sampler.sample_from_nodes(inputs).edge)
    assert not torch.equal(first.edge, sample(data, [3, 3], seed=8).edge)


def test_without_a_seed_torchs_generator_decides():
    data = random_graph()
    edges = []
    for _ in range(2):
        torch.manual_seed(3)
        edges.append([sample(data, [3, 3], seed=None).edge for _ in range(2)])
    assert torch.equal(edges[0][0], edges[1][0])
    assert not torch.equal(edges[0][0], edges[0][1])


def test_heterogeneous_neighbourhoods_follow_every_relation():
    data = library()
    counts = {
        ("author", "writes", "paper"): [2, 2],
        ("paper", "rev_writes", "author"): [1, 1],
        ("paper", "cites", "paper"): [-1, 0],
    }
    seeds = torch.tensor([4, 11])
    sampler = NeighborSampler(data, counts, seed=0)
    out = sampler.sample_from_nodes(NodeSamplerInput(None, seeds, None, "paper"))
    assert torch.equal(out.node["paper"][:2], seeds)
    for key, edges in out.edge.items():
        ends = out.node[key[0]][out.row[key]], out.node[key[2]][out.col[key]]
        original = data[key].edge_index[:, sampler.edge_permutation[key][edges]]
        assert torch.equal(original, torch.stack(ends))
    cites = ("paper", "cites", "paper")
    assert len(out.edge[cites]) == len(in_edges(data[cites], seeds))
    assert out.num_sampled_edges[cites][1] == 0
    assert {k: sum(v) for k, v in out.num_sampled_nodes.items()} == {
        k: len(v) for k, v in out.node.items()
    }


def test_pygs_neighbor_loader_takes_the_sampler():
    data = random_graph()
    loader = NeighborLoader(
        data, [3, 2], batch_size=16, neighbor_sampler=NeighborSampler(data, [3, 2], seed=0)
    )
    batches = list(loader)
    assert torch.cat([batch.input_id for batch in batches]).tolist() == list(range(200))
    for batch in batches:
        assert torch.equal(batch.n_id[: batch.batch_size], batch.input_id)
        assert torch.equal(data.edge_index[:, batch.e_id], batch.n_id[batch.edge_index])
        assert torch.equal(batch.edge_attr, data.edge_attr[batch.e_id])
        assert torch.equal(batch.x, data.x[batch.n_id])


def test_samples_do_not_depend_on_the_number_of_workers():
    data = random_graph()
    sampler = NeighborSampler(data, [3, 2], seed=0)
    here, there = (
        list(NeighborLoader(data, [], batch_size=64, neighbor_sampler=sampler, num_workers=n))
        for n in (0, 2)
    )
    assert all(same_tensors(a, b) for a, b in zip(here, there, strict=True))


def test_pygs_link_loader_takes_the_sampler():
    data = random_graph()
    sampler = NeighborSampler(data, [3], seed=0)
    loader = LinkNeighborLoader(
        data, [3], batch_size=32, neg_sampling_ratio=1.0, neighbor_sampler=sampler
    )
    before = torch.get_rng_state()
    first, again = next(iter(loader)), next(iter(loader))
    assert torch.equal(first.edge_label_index, again.edge_label_index)
    pairs = first.n_id[first.edge_label_index][:, :32]
    assert torch.equal(pairs, data.edge_index[:, :32])
    torch.set_rng_state(before)


def test_feature_and_graph_stores_are_read():
    from torch_geometric.testing import MyFeatureStore, MyGraphStore

    data = random_graph()
    features, graph = MyFeatureStore(), MyGraphStore()
    features.put_tensor(data.x, group_name=None, attr_name="x", index=None)
    graph.put_edge_index(data.edge_index, edge_type=None, layout="coo", size=(200, 200))
    sampler = NeighborSampler((features, graph), [-1], seed=0)
    out = sampler.sample_from_nodes(NodeSamplerInput(None, SEEDS))
    assert len(out.edge) == len(in_edges(data, SEEDS))


def test_a_graph_store_with_an_edge_from_no_node_is_refused():
    from torch_geometric.testing import MyFeatureStore, MyGraphStore

    features, graph = MyFeatureStore(), MyGraphStore()
    features.put_tensor(torch.ones(3, 1), group_name=None, attr_name="x", index=None)
    sources, offsets = torch.tensor([0, 7]), torch.tensor([0, 1, 2, 2])
    graph.put_edge_index((sources, offsets), edge_type=None, layout="csc", size=(3, 3))
    with pytest.raises(OptionsError, match="nodes 0 to 7, but there are 3"):
        NeighborSampler((features, graph), [-1], seed=0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"temporal_strategy": "first"}, "got 'first'"),
        ({"time_attr": "when"}, "no attribute 'when'"),
        ({"weight_attr": "w"}, "no attribute 'w'"),
        ({"time_attr": "y", "subgraph_type": "induced"}, "later than the seed"),
    ],
)
def test_refused_arguments(arguments, message):
    with pytest.raises(OptionsError, match=message):
        NeighborSampler(random_graph(), [2], **arguments)


def test_seeds_that_are_no_list_are_refused():
    sampler = NeighborSampler(random_graph(), [2])
    with pytest.raises(OptionsError, match=r"got an array of shape \[1, 3\]; call flatten"):
        sampler.sample_from_nodes(NodeSamplerInput(None, torch.tensor([[0, 1, 2]])))


def test_refused_weights_seeds_and_times():
    data = random_graph()
    data.w = -torch.ones(data.num_edges)
    with pytest.raises(OptionsError, match="not negative"):
        NeighborSampler(data, [2], weight_attr="w")
    with pytest.raises(OptionsError, match=r"seed node 200 is outside 0\.\.199"):
        sample(data, [2], nodes=torch.tensor([200]))
    data.when = torch.zeros(data.num_edges)
    with pytest.raises(OptionsError, match="pass input_time"):
        sample(data, [2], time_attr="when")
    with pytest.raises(OptionsError, match="got list"):
        NeighborSampler([1, 2, 3], [2])


@pytest.mark.parametrize("edge", [[0, 7], [7, 0], [-1, 0]])
def test_a_sampler_refuses_edges_to_no_node(edge):
    # They used to overwrite memory that belongs to others.
    graph = Data(x=torch.zeros(3, 1), edge_index=torch.tensor([edge]).T)
    with pytest.raises(
        OptionsError, match=r"edge_index has nodes from .* but there are 3; correct"
    ):
        NeighborSampler(graph, [2])


@pytest.mark.parametrize("edge", [[0, 7], [-1, 0]])
def test_a_sampler_refuses_typed_edges_to_no_node(edge):
    graph = HeteroData()
    graph["a"].x, graph["b"].x = torch.zeros(3, 1), torch.zeros(4, 1)
    graph["a", "to", "b"].edge_index = torch.tensor([edge]).T
    with pytest.raises(OptionsError, match=r"edge_index has nodes .* of type '[ab]'"):
        NeighborSampler(graph, [2])


@pytest.mark.parametrize(
    ("num_neighbors", "message"),
    [(3, r"num_neighbors is 3; .* such as \[3\]"), ([2.5], "must be a whole number, got 2.5")],
)
def test_neighbors_are_whole_numbers_by_hop(num_neighbors, message):
    with pytest.raises(OptionsError, match=message):
        NeighborSampler(star(5), num_neighbors)
