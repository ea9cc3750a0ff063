import copy

import pytest
import torch
from torch_geometric.data import Batch, Data, HeteroData

from torchkiln.core import BatchTooLarge, OptionsError
from torchkiln.graphs import BatchSpec, PadValues
from torchkiln.graphs._errors import GraphError
from torchkiln.graphs.batches._pad import MaskNames, pad_batch


def make_graph(num_nodes, num_edges, **extra):
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
    graph["paper"].y = torch.arange(papers)
    graph["author", "wrote", "paper"].edge_index = torch.stack(
        [torch.randint(0, authors, (5,)), torch.randint(0, papers, (5,))]
    )
    graph["paper", "by", "author"].edge_index = torch.stack(
        [torch.randint(0, papers, (3,)), torch.randint(0, authors, (3,))]
    )
    graph["paper", "by", "author"].edge_attr = torch.randn(3, 1)
    graph.u = torch.randn(1, 2)
    return graph


WROTE, BY = ("author", "wrote", "paper"), ("paper", "by", "author")
HETERO_SPEC = BatchSpec({"author": 12, "paper": 9}, {WROTE: 14, BY: 11}, 4)


def test_the_documented_example_is_laid_out_as_documented():
    batch = pad_batch([make_graph(3, 4), make_graph(2, 3)], BatchSpec(10, 12, 4))
    assert batch.ptr.tolist() == [0, 3, 5, 8, 10]
    assert batch.batch.tolist() == [0, 0, 0, 1, 1, 2, 2, 2, 3, 3]
    assert batch.edge_index[:, 7:].tolist() == [[5, 5, 5, 8, 8]] * 2
    assert batch.node_mask.tolist() == [True] * 5 + [False] * 5
    assert batch.edge_mask.tolist() == [True] * 7 + [False] * 5
    assert batch.graph_mask.tolist() == [True, True, False, False]
    assert batch.num_graphs == len(batch.to_data_list()) == 4


def test_the_real_part_is_the_plain_pyg_batch():
    graphs = [make_graph(3, 4), make_graph(5, 6), make_graph(1, 0)]
    padded, plain = pad_batch(graphs, BatchSpec(20, 20, 6)), Batch.from_data_list(graphs)
    for name in ("x", "edge_attr", "y", "batch"):
        assert torch.equal(padded[name][: len(plain[name])], plain[name]), name
    assert torch.equal(padded.edge_index[:, : plain.num_edges], plain.edge_index)
    assert torch.equal(padded.ptr[: len(plain.ptr)], plain.ptr)


def test_given_graphs_and_list_are_not_changed():
    graphs = [make_graph(3, 4, name="a")]
    before = copy.deepcopy(graphs)
    pad_batch(graphs, BatchSpec(10, 12, 4), trim_nodes=True, trim_edges=True)
    assert len(graphs) == 1
    assert graphs[0].to_dict().keys() == before[0].to_dict().keys()
    assert torch.equal(graphs[0].x, before[0].x)


@pytest.mark.parametrize("nodes", [5, 9])
def test_a_full_batch_keeps_its_shapes_and_indices_in_range(nodes):
    batch = pad_batch([make_graph(nodes, 4)], BatchSpec(10, 12, 5))
    assert batch.x.shape == (10, 3)
    assert batch.edge_index.shape == (2, 12)
    assert batch.ptr.shape == (6,)
    assert int(batch.edge_index.max()) < 10
    assert not batch.node_mask[batch.edge_index[:, 4:]].any()
    assert batch.graph_mask.tolist() == [True] + [False] * 4


def test_edges_may_fill_the_batch_to_the_last():
    batch = pad_batch([make_graph(9, 12)], BatchSpec(10, 12, 2))
    assert batch.edge_mask.all()


@pytest.mark.parametrize(
    ("graphs", "what"),
    [
        ([(10, 4)], r"number of nodes required: 1 graphs have 10 and num_nodes is 10"),
        ([(3, 13)], r"number of edges required: 1 graphs have 13 and num_edges is 12"),
        ([(1, 1)] * 4, r"4 graphs leave no room for at least one padding graph in num_graphs=4"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_size(graphs, what):
    with pytest.raises(BatchTooLarge, match=what):
        pad_batch([make_graph(*sizes) for sizes in graphs], BatchSpec(10, 12, 4))


def test_pad_values_by_level_and_name_are_cast():
    graph = make_graph(3, 4, z=torch.ones(3, dtype=torch.long), train_mask=torch.ones(3).bool())
    pad = PadValues(node=2.5, edge=-1, graph=7, attributes={"z": 9})
    batch = pad_batch([graph], BatchSpec(5, 6, 2), pad=pad)
    assert batch.x[3:].unique().tolist() == [2.5]
    assert batch.edge_attr[4:].unique().tolist() == [-1]
    assert batch.y[1:].tolist() == [7]
    assert batch.z.tolist() == [1, 1, 1, 9, 9]
    assert batch.train_mask.tolist() == [True] * 3 + [False] * 2


@pytest.mark.parametrize(
    ("dtype", "value"), [(torch.int64, 1e30), (torch.uint8, -1), (torch.float16, 1e30)]
)
def test_pad_values_that_a_dtype_cannot_hold_are_refused(dtype, value):
    graph = make_graph(3, 4, z=torch.ones(3, dtype=dtype))
    with pytest.raises(OptionsError, match=r"'z' does not fit its dtype.*attributes=\{'z': 0\}"):
        pad_batch([graph], BatchSpec(5, 6, 2), pad=PadValues(node=value))


def test_constants_come_from_defaults_or_the_first_graph():
    graphs = [make_graph(3, 4, name=f"g{i}", charge=i) for i in range(2)]
    batch = pad_batch(graphs, BatchSpec(10, 12, 4), defaults={"charge": -1})
    assert batch.name == ["g0", "g1", "g0", "g0"]
    assert batch.charge.tolist() == [0, 1, -1, -1]


def test_excluded_attributes_are_gone_and_may_be_missing():
    graphs = [make_graph(3, 4, name="a"), make_graph(2, 3)]
    batch = pad_batch(graphs, BatchSpec(10, 12, 4), exclude_keys=["name", "edge_attr"])
    assert "name" not in batch
    assert "edge_attr" not in batch
    with pytest.raises(GraphError, match=r"graph 1 has no attribute 'name'.*exclude_keys"):
        pad_batch(graphs, BatchSpec(10, 12, 4))


@pytest.mark.parametrize("excluded", ["x", "pos"])
def test_excluded_features_do_not_count_nodes(excluded):
    graph = make_graph(3, 4, pos=torch.randn(3, 3))
    batch = pad_batch([graph], BatchSpec(10, 12, 3), exclude_keys=[excluded])
    assert batch.ptr.tolist() == [0, 3, 7, 10]
    assert batch.edge_index[:, 4:].unique().tolist() == [3, 7]


def test_follow_batch_and_mask_names_are_honoured():
    batch = pad_batch(
        [make_graph(3, 4)],
        BatchSpec(5, 6, 2),
        follow_batch=["edge_attr"],
        masks=MaskNames(node="nodes", edge="edges", graph="graphs"),
    )
    assert batch.edge_attr_batch.tolist() == [0] * 4 + [1] * 2
    assert batch.nodes.tolist() == [True] * 3 + [False] * 2
    assert "node_mask" not in batch
    assert "node_mask" not in pad_batch([make_graph(3, 4)], BatchSpec(5, 6, 2), masks=False)


def test_an_empty_list_makes_a_batch_of_filler_like_a_graph():
    graph = make_graph(3, 4)
    batch = pad_batch([], BatchSpec(10, 12, 4), like=graph)
    full = pad_batch([graph], BatchSpec(10, 12, 4))
    assert {k: v.shape for k, v in batch.to_dict().items()} == {
        k: v.shape for k, v in full.to_dict().items()
    }
    assert not batch.node_mask.any()
    assert not batch.graph_mask.any()
    with pytest.raises(GraphError, match="like="):
        pad_batch([], BatchSpec(10, 12, 4))


class PairData(Data):
    """A graph whose `index_pair` numbers edges, and whose `stacked` gets a dim of its own."""

    def __inc__(self, key, value, *args):
        return self.num_edges if key == "index_pair" else super().__inc__(key, value, *args)

    def __cat_dim__(self, key, value, *args):
        return None if key == "stacked" else super().__cat_dim__(key, value, *args)


def test_own_rules_of_a_subclass_are_followed():
    graphs = [
        PairData(
            x=torch.randn(3, 1),
            edge_index=torch.tensor([[0, 1], [1, 2]]),
            index_pair=torch.tensor([[0], [1]]),
            stacked=torch.full((2,), float(i + 1)),
        )
        for i in range(2)
    ]
    batch = pad_batch(graphs, BatchSpec(10, 8, 4))
    assert batch.index_pair.tolist() == [[0, 2, 4, 6], [1, 3, 4, 6]]
    assert batch.stacked.tolist() == [[1, 1], [2, 2], [0, 0], [0, 0]]


def test_graph_level_indices_of_filler_without_nodes_stay_in_range():
    graph = make_graph(8, 4, root_index=torch.tensor([3]))
    batch = pad_batch([graph], BatchSpec(9, 6, 4), pad=PadValues(graph=5))
    assert batch.root_index[0] == 3
    assert batch.root_index[1:].tolist() == [8, 8, 8]


def test_a_graph_vector_as_long_as_one_graph_is_not_taken_for_nodes():
    graphs = [make_graph(3, 4, u=torch.ones(3)), make_graph(2, 5, u=torch.ones(3))]
    assert pad_batch(graphs, BatchSpec(10, 12, 4)).u.shape == (12,)


def test_single_node_graphs_leave_doubt_that_levels_settle():
    graph = make_graph(1, 0)
    with pytest.raises(GraphError, match=r"'y' has one entry.*levels=\{'y': 'graph'\}"):
        pad_batch([graph], BatchSpec(5, 6, 3))
    assert pad_batch([graph], BatchSpec(5, 6, 3), levels={"y": "graph"}).y.shape == (3,)
    assert pad_batch([graph], BatchSpec(5, 6, 3), levels={"y": "node"}).y.shape == (5,)


def test_explicit_node_counts_are_respected():
    graph = Data(edge_index=torch.tensor([[0, 1], [1, 0]]), num_nodes=4)
    batch = pad_batch([graph, graph], BatchSpec(12, 8, 4))
    assert batch.num_nodes == 12
    assert batch.ptr.tolist() == [0, 4, 8, 10, 12]
    assert batch.edge_index[:, 4:].tolist() == [[8, 8, 10, 10]] * 2


def test_sparse_matrices_are_refused():
    graph = make_graph(3, 4, adj=torch.eye(3).to_sparse())
    with pytest.raises(GraphError, match=r"'adj' is a sparse matrix.*edge_index"):
        pad_batch([graph], BatchSpec(10, 12, 4))


def test_graphs_of_two_classes_are_refused():
    with pytest.raises(GraphError, match="graph 1 is a HeteroData and graph 0 a Data"):
        pad_batch([make_graph(3, 4), make_hetero()], BatchSpec(10, 12, 4))


def test_heterogeneous_graphs_are_padded_by_type():
    graphs = [make_hetero(4, 2), make_hetero(3, 2)]
    batch, plain = pad_batch(graphs, HETERO_SPEC), Batch.from_data_list(graphs)
    assert {kind: batch[kind].x.shape[0] for kind in batch.node_types} == HETERO_SPEC.num_nodes
    for kind in (WROTE, BY):
        index, real = batch[kind].edge_index, plain[kind].edge_index
        assert torch.equal(index[:, : real.shape[1]], real)
        for end, row in ((kind[0], index[0]), (kind[2], index[1])):
            assert int(row.max()) < batch[end].num_nodes
            assert not batch[end].node_mask[row[~batch[kind].edge_mask]].any()
        assert int(batch[kind].edge_mask.sum()) == real.shape[1]
    assert torch.equal(batch["paper"].y[:4], plain["paper"].y)
    assert batch.u.shape == (4, 2)
    assert batch.graph_mask.tolist() == [True, True, False, False]
    assert batch["author"].ptr.tolist() == [0, 4, 7, 10, 12]


def test_one_filler_graph_hosts_all_filler_edges_on_its_first_nodes():
    spec = BatchSpec({"author": 12, "paper": 9}, {WROTE: 14, BY: 11}, 2)
    batch = pad_batch([make_hetero(4, 2)], spec)
    assert batch[WROTE].edge_index[:, 5:].unique(dim=1).tolist() == [[4], [2]]


def test_types_that_the_spec_lacks_are_named():
    spec = BatchSpec({"author": 12}, {WROTE: 14, BY: 11}, 4)
    with pytest.raises(GraphError, match=r"num_nodes has no entry for the type 'paper'"):
        pad_batch([make_hetero()], spec)


def test_too_many_nodes_of_a_type_are_named():
    with pytest.raises(BatchTooLarge, match=r"number of nodes of type 'paper' required"):
        pad_batch([make_hetero(2, 5), make_hetero(2, 4)], HETERO_SPEC)


def test_spec_and_graphs_must_be_of_one_kind():
    with pytest.raises(OptionsError, match="which need dicts"):
        pad_batch([make_hetero()], BatchSpec(10, 12, 4))
    with pytest.raises(OptionsError, match="which need numbers"):
        pad_batch([make_graph(3, 4)], HETERO_SPEC)


def test_other_types_in_one_graph_are_named():
    graph = make_hetero()
    del graph["paper", "by", "author"]
    with pytest.raises(GraphError, match=r"graph 1 has other node or edge types.*by"):
        pad_batch([make_hetero(), graph], HETERO_SPEC)
