import pytest
import torch
from _pg_graphs import WROTE, make_graph, make_graphs, make_hetero
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler

from poptorch_geometric import FixedSizeOptions
from poptorch_geometric.collate import CombinedBatchingCollater, FixedSizeCollater
from poptorch_geometric.stream_packing_sampler import StreamPackingSampler


def graphs_of(*sizes):
    return [make_graph(nodes, edges) for nodes, edges in sizes]


def test_samples_join_while_they_fit():
    graphs = graphs_of((3, 3), (3, 3), (3, 3), (4, 4), (4, 4))
    sampler = StreamPackingSampler(graphs, 3, max_num_nodes=9, max_num_edges=9)
    assert list(sampler) == [[0, 1, 2], [3, 4]]
    assert len(sampler) == 2


def test_edges_limit_too():
    graphs = graphs_of((2, 6), (2, 6), (2, 1))
    assert list(StreamPackingSampler(graphs, 3, 20, 10)) == [[0], [1, 2]]


def test_left_over_slots_need_left_over_nodes():
    # After the first, 2 graphs are left over but only 1 node would be.
    with pytest.raises(RuntimeError, match=r"Sample 0 has 9 nodes and 2 edges"):
        list(StreamPackingSampler(graphs_of((9, 2)), 3, 10, 10))
    assert list(StreamPackingSampler(graphs_of((8, 2)), 3, 10, 10)) == [[0]]


def test_what_never_fits_is_skipped_on_demand():
    graphs = graphs_of((3, 3), (50, 3), (3, 3))
    assert list(StreamPackingSampler(graphs, 2, 9, 9, allow_skip_data=True)) == [[0, 2]]
    with pytest.raises(RuntimeError, match="50 nodes"):
        list(StreamPackingSampler(graphs, 2, 9, 9))


def test_default_limits_fit_any_samples():
    graphs = graphs_of((3, 4), (5, 2))
    sampler = StreamPackingSampler(graphs, 4)
    assert (sampler.max_num_nodes, sampler.max_num_edges) == (20, 16)


@pytest.mark.parametrize("max_num_graphs", [None, 0])
def test_there_must_be_room_for_a_graph(max_num_graphs):
    with pytest.raises(ValueError, match="max_num_graphs must be at least 1"):
        StreamPackingSampler(make_graphs(2), max_num_graphs)


def test_limits_must_hold_a_node_and_an_edge_a_graph():
    with pytest.raises(ValueError, match="max_num_nodes must be at least max_num_graphs=5"):
        StreamPackingSampler(make_graphs(2), 5, max_num_nodes=4)
    with pytest.raises(ValueError, match="max_num_edges"):
        StreamPackingSampler(make_graphs(2), 5, max_num_edges=4)


def test_an_empty_base_sampler_is_refused():
    with pytest.raises(ValueError, match="no samples"):
        StreamPackingSampler(make_graphs(2), 2, base_sampler=SequentialSampler([]))


def test_the_base_sampler_gives_the_order():
    graphs = graphs_of(*[(3, 3)] * 4)
    sampler = StreamPackingSampler(graphs, 2, base_sampler=[3, 1, 0])
    assert list(sampler) == [[3, 1], [0]]
    sampler = StreamPackingSampler(graphs, 2, base_sampler=RandomSampler(graphs))
    assert sorted(i for part in sampler for i in part) == [0, 1, 2, 3]
    with pytest.raises(NotImplementedError):
        len(sampler)


def test_limits_by_type_hold_for_each_type():
    graphs = [make_hetero(1, 6), make_hetero(6, 1), make_hetero(6, 1)]
    sampler = StreamPackingSampler(graphs, 3, {"author": 8, "paper": 8}, {WROTE: 20})
    assert list(sampler) == [[0, 1], [2]]


def test_it_serves_a_plain_torch_loader():
    graphs = make_graphs(20)
    collater = FixedSizeCollater(FixedSizeOptions(31, 41, 6), add_masks_to_batch=True)
    loader = DataLoader(
        graphs,
        batch_sampler=StreamPackingSampler(graphs, 5, 30, 40),
        collate_fn=CombinedBatchingCollater(collater),
    )
    batches = list(loader)
    assert {batch.x.shape for batch in batches} == {torch.Size([31, 3])}
    assert sum(int(batch.graphs_mask.sum()) for batch in batches) == 20
