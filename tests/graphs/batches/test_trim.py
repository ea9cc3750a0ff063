import pytest
import torch
from torch_geometric.data import Data, HeteroData

from torchkiln.core import BatchTooLarge
from torchkiln.graphs import BatchSpec
from torchkiln.graphs._errors import GraphError
from torchkiln.graphs.batches._pad import pad_batch
from torchkiln.graphs.batches._trim import choose_kept


def numbered(num_nodes, num_edges, **extra):
    """A graph whose attributes say which node or edge they came from."""
    edge_index = torch.randint(0, num_nodes, (2, num_edges))
    return Data(
        x=torch.arange(float(num_nodes))[:, None],
        edge_index=edge_index,
        edge_attr=edge_index.t().float(),
        y=torch.ones(1),
        **extra,
    )


def test_exactly_the_limit_is_kept_and_something_of_every_graph():
    for _ in range(20):
        kept = choose_kept([1, 30, 1, 0, 9], 10)
        assert int(kept.sum()) == 10
        assert all(part.any() for part in torch.split(kept, [1, 30, 1, 0, 9]) if len(part))


def test_protected_entries_stay_and_too_many_of_them_are_refused():
    kept = choose_kept([20, 20], 9, protected=4)
    assert kept[:4].all()
    assert kept[20:24].all()
    with pytest.raises(BatchTooLarge, match="8 entries have to stay"):
        choose_kept([20, 20], 7, protected=4)


def test_every_entry_may_go():
    torch.manual_seed(0)
    often = sum(choose_kept([10], 5).long() for _ in range(400))
    assert ((often > 140) & (often < 260)).all()  # 200 expected, 6 standard deviations of 10


def test_node_trimming_leaves_induced_sub_graphs_and_one_filler_node():
    graphs = [numbered(30, 60), numbered(20, 40)]
    batch = pad_batch(graphs, BatchSpec(16, 100, 4), trim_nodes=True)
    assert int(batch.node_mask.sum()) == 15
    real = batch.edge_mask
    # An edge's attribute names the nodes it joined before: they are still the ones it joins.
    ends = batch.x[batch.edge_index[:, real], 0]
    assert torch.equal(ends.t(), batch.edge_attr[real])
    assert (batch.batch[batch.edge_index[0, real]] == batch.batch[batch.edge_index[1, real]]).all()
    kept = {float(v) for v in batch.x[batch.node_mask & (batch.batch == 0), 0]}
    inside = [e for e in graphs[0].edge_attr.tolist() if set(e) <= kept]
    assert int((batch.batch[batch.edge_index[0, real]] == 0).sum()) == len(inside)


def test_edge_trimming_keeps_nodes_and_an_edge_of_every_graph_that_has_one():
    graphs = [numbered(5, 40), numbered(5, 1), numbered(5, 0)]
    batch = pad_batch(graphs, BatchSpec(20, 12, 4), trim_edges=True)
    assert int(batch.edge_mask.sum()) == 12
    assert int(batch.node_mask.sum()) == 15
    owners = batch.batch[batch.edge_index[0]]
    assert sorted(set(owners.tolist())) == [0, 1]


def test_nothing_is_removed_from_what_fits():
    graphs = [numbered(5, 8), numbered(4, 4)]
    batch = pad_batch(graphs, BatchSpec(10, 12, 4), trim_nodes=True, trim_edges=True)
    assert torch.equal(batch.x[:9], torch.cat([graph.x for graph in graphs]))
    assert int(batch.edge_mask.sum()) == 12


def test_trimming_draws_from_the_global_generator_or_the_given_one():
    graphs, spec = [numbered(30, 10)], BatchSpec(10, 12, 2)
    torch.manual_seed(3)
    first = pad_batch(graphs, spec, trim_nodes=True)
    torch.manual_seed(3)
    assert torch.equal(first.x, pad_batch(graphs, spec, trim_nodes=True).x)
    state = torch.get_rng_state()
    own = pad_batch(graphs, spec, trim_nodes=True, generator=torch.Generator().manual_seed(1))
    assert torch.equal(state, torch.get_rng_state())
    again = pad_batch(graphs, spec, trim_nodes=True, generator=torch.Generator().manual_seed(1))
    assert torch.equal(own.x, again.x)


def test_protected_nodes_stay_first():
    batch = pad_batch([numbered(30, 10)], BatchSpec(10, 12, 2), trim_nodes=True, protected_nodes=6)
    assert batch.x[:6, 0].tolist() == [0, 1, 2, 3, 4, 5]


def test_more_graphs_than_nodes_cannot_be_trimmed():
    with pytest.raises(BatchTooLarge, match="would empty graphs"):
        pad_batch([numbered(3, 2)] * 6, BatchSpec(6, 20, 8), trim_nodes=True)


def test_attributes_that_number_nodes_forbid_node_trimming():
    graph = numbered(30, 10, pair_index=torch.tensor([[0], [29]]))
    with pytest.raises(GraphError, match=r"'pair_index' numbers nodes.*exclude_keys"):
        pad_batch([graph], BatchSpec(10, 12, 2), trim_nodes=True)
    batch = pad_batch([graph], BatchSpec(10, 12, 2), trim_nodes=True, exclude_keys=["pair_index"])
    assert int(batch.node_mask.sum()) == 9


def test_heterogeneous_graphs_are_trimmed_by_type():
    kind = ("a", "to", "b")
    graph = HeteroData()
    graph["a"].x = torch.arange(20.0)[:, None]
    graph["b"].x = torch.arange(6.0)[:, None]
    graph[kind].edge_index = torch.stack([torch.randint(0, 20, (40,)), torch.randint(0, 6, (40,))])
    graph[kind].edge_attr = graph[kind].edge_index.t().float()
    spec = BatchSpec({"a": 9, "b": 10}, {kind: 10}, 2)
    batch = pad_batch([graph], spec, trim_nodes=True, trim_edges=True)
    assert int(batch["a"].node_mask.sum()) == 8
    assert int(batch["b"].node_mask.sum()) == 6
    real = batch[kind].edge_mask
    index = batch[kind].edge_index[:, real]
    ends = torch.stack([batch["a"].x[index[0], 0], batch["b"].x[index[1], 0]], dim=1)
    assert torch.equal(ends, batch[kind].edge_attr[real])
