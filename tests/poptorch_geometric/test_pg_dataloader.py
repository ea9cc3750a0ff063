import pytest
import torch
import torch.utils.data
from _pg_graphs import WROTE, load_mutag, make_graph, make_graphs, make_hetero
from torch import nn
from torch_geometric.data import Batch
from torch_geometric.nn import GraphConv, global_add_pool
from torch_geometric.transforms import Pad

import poptorch
from poptorch_geometric import (
    FixedSizeDataLoader,
    FixedSizeOptions,
    FixedSizeStrategy,
    OverSizeStrategy,
    pyg_dataloader,
)
from poptorch_geometric.dataloader import DataLoader

SIZES = FixedSizeOptions(num_nodes=30, num_edges=40, num_graphs=5)


def shapes(batch):
    return {k: tuple(v.shape) for k, v in batch.to_dict().items() if isinstance(v, torch.Tensor)}


def real_labels(batches):
    """Return the labels of all real graphs of (combined) batches."""
    return torch.cat([batch.y[batch.graphs_mask] for batch in batches])


def labels(graphs):
    return torch.cat([graph.y for graph in graphs])


def test_strategies_have_the_original_values():
    assert [(m.name, m.value) for m in FixedSizeStrategy] == [("PadToMax", 0), ("StreamPack", 1)]
    names = ["Error", "Skip", "TrimNodes", "TrimEdges", "TrimNodesAndEdges"]
    assert [(m.name, m.value) for m in OverSizeStrategy] == list(zip(names, range(5), strict=True))


def test_the_order_of_classes():
    order = FixedSizeDataLoader.__mro__
    assert order[:4] == (
        FixedSizeDataLoader,
        pyg_dataloader.FixedSizeDataLoader,
        poptorch.DataLoader,
        torch.utils.data.DataLoader,
    )


def test_mutag_has_the_shapes_of_the_tutorial(tmp_path):
    dataset = load_mutag(tmp_path)
    loader = FixedSizeDataLoader(dataset, batch_size=10)
    batches = list(loader)
    assert repr(batches[0]) == (
        "DataBatch(x=[253, 7], edge_index=[2, 595], edge_attr=[595, 4], y=[10], batch=[253], "
        "edges_mask=[595], graphs_mask=[10], nodes_mask=[253], ptr=[11], num_nodes=253, "
        "num_edges=595)"
    )
    assert len(loader) == len(batches) == 188 // 9
    plain = Batch.from_data_list(dataset[:9])
    assert torch.equal(batches[0].x[: plain.num_nodes], plain.x)
    assert torch.equal(batches[0].edge_index[:, : plain.num_edges], plain.edge_index)
    assert torch.equal(batches[0].y[:9], plain.y)


def test_batch_size_counts_the_padding_graph():
    options = poptorch.Options().deviceIterations(2)
    options.Training.gradientAccumulation(2)
    loader = FixedSizeDataLoader(make_graphs(40), 5, fixed_size_options=SIZES, options=options)
    assert loader.combinedBatchSize == loader.batch_size == 16
    assert loader.padded_batch_size == 5
    assert loader.fixed_size_options is SIZES
    assert loader.options is options
    assert len(loader) == 2
    batch = next(iter(loader))
    assert batch.edge_index.shape == (8, 40)
    assert batch.x.shape == (120, 3)
    assert batch.ptr.shape == (24,)
    assert batch.num_graphs == 5


def test_sizes_must_fit_the_batch_size():
    graphs = make_graphs(4)
    with pytest.raises(ValueError, match="batch_size must be at least 2"):
        FixedSizeDataLoader(graphs, batch_size=1)
    with pytest.raises(AssertionError, match="num_graphs of fixed_size_options"):
        FixedSizeDataLoader(graphs, batch_size=3, fixed_size_options=SIZES)


def test_misuse_is_refused():
    graphs = make_graphs(4)
    with pytest.raises(AssertionError, match="collate_fn"):
        FixedSizeDataLoader(graphs, 5, fixed_size_options=SIZES, collate_fn=list)
    with pytest.raises(ValueError, match="batch_sampler"):
        FixedSizeDataLoader(
            graphs,
            5,
            fixed_size_options=SIZES,
            fixed_size_strategy=FixedSizeStrategy.StreamPack,
            batch_sampler=[[0]],
        )
    for name in ("fixed_size_strategy", "over_size_strategy"):
        with pytest.raises(NotImplementedError, match=name):
            FixedSizeDataLoader(graphs, 5, fixed_size_options=SIZES, **{name: "nonsense"})


def test_too_large_samples_are_an_error_when_they_come():
    graphs = [*make_graphs(3), make_graph(40, 4)]
    loader = FixedSizeDataLoader(graphs, 5, fixed_size_options=SIZES)
    with pytest.raises(RuntimeError, match="don't allocate enough space for the number of nodes"):
        list(loader)


@pytest.mark.parametrize(
    ("strategy", "sizes"),
    [
        (OverSizeStrategy.TrimNodes, (80, 20)),
        (OverSizeStrategy.TrimEdges, (10, 200)),
        (OverSizeStrategy.TrimNodesAndEdges, (80, 200)),
    ],
)
def test_too_large_samples_are_trimmed_on_demand(strategy, sizes):
    loader = FixedSizeDataLoader(
        [make_graph(*sizes)] * 2,
        2,
        fixed_size_options=FixedSizeOptions(30, 40),
        over_size_strategy=strategy,
    )
    for batch in loader:
        assert batch.x.shape == (30, 3)
        assert batch.edge_index.shape == (2, 40)
        assert int(batch.edge_index.max()) < 30


def test_packed_batches_hold_every_sample_once_in_constant_shapes():
    graphs = make_graphs(60)
    loader = FixedSizeDataLoader(
        graphs,
        5,
        fixed_size_options=SIZES,
        fixed_size_strategy=FixedSizeStrategy.StreamPack,
    )
    batches = list(loader)
    assert len(loader) == len(batches)
    assert len({str(shapes(batch)) for batch in batches}) == 1
    assert torch.equal(real_labels(batches), labels(graphs))
    assert len({int(batch.graphs_mask.sum()) for batch in batches}) > 1


def test_packing_without_sizes_derives_them():
    loader = FixedSizeDataLoader(
        make_graphs(20), 4, fixed_size_strategy=FixedSizeStrategy.StreamPack
    )
    assert loader.fixed_size_options.num_graphs == 4
    assert int(sum(batch.graphs_mask.sum() for batch in loader)) == 20


def test_shuffled_packing_has_no_length_and_another_order():
    graphs = make_graphs(60)
    loader = FixedSizeDataLoader(
        graphs,
        5,
        shuffle=True,
        fixed_size_options=SIZES,
        fixed_size_strategy=FixedSizeStrategy.StreamPack,
    )
    with pytest.raises(NotImplementedError, match="RandomSampler"):
        len(loader)
    first, second = real_labels(loader), real_labels(loader)
    assert not torch.equal(first, second)
    assert torch.equal(first.sort()[0], labels(graphs).sort()[0])


def test_packing_refuses_or_skips_what_never_fits():
    graphs = make_graphs(10)
    graphs.insert(5, make_graph(100, 3))
    settings = {
        "fixed_size_options": SIZES,
        "fixed_size_strategy": FixedSizeStrategy.StreamPack,
    }
    with pytest.raises(RuntimeError, match=r"Sample 5 has 100 nodes"):
        list(FixedSizeDataLoader(graphs, 5, **settings))
    loader = FixedSizeDataLoader(graphs, 5, over_size_strategy=OverSizeStrategy.Skip, **settings)
    assert torch.equal(real_labels(loader), labels(graphs[:5] + graphs[6:]))


def test_packing_and_trimming_go_together():
    graphs = make_graphs(12)
    graphs.insert(5, make_graph(100, 3))
    graphs.insert(8, make_graph(6, 90))
    graphs.append(make_graph(200, 900))
    loader = FixedSizeDataLoader(
        graphs,
        5,
        fixed_size_options=SIZES,
        fixed_size_strategy=FixedSizeStrategy.StreamPack,
        over_size_strategy=OverSizeStrategy.TrimNodesAndEdges,
    )
    batches = list(loader)
    assert len(loader) == len(batches)
    assert torch.equal(real_labels(batches), labels(graphs))
    assert len({str(shapes(batch)) for batch in batches}) == 1
    real = dict.fromkeys(labels(graphs).tolist(), (0, 0))
    for batch in batches:
        nodes = batch.nodes_mask.new_zeros(5, dtype=torch.long)
        nodes.index_add_(0, batch.batch, batch.nodes_mask.long())
        edges = torch.zeros(5, dtype=torch.long)
        edges.index_add_(0, batch.batch[batch.edge_index[0]], batch.edges_mask.long())
        real |= dict(
            zip(batch.y.tolist(), zip(nodes.tolist(), edges.tolist(), strict=True), strict=True)
        )
    for graph in graphs:
        nodes, edges = real[graph.y.item()]
        if graph.num_nodes <= 29 and graph.num_edges <= 40:
            assert (nodes, edges) == (graph.num_nodes, graph.num_edges)
        else:
            assert 0 < nodes <= 29
            assert edges <= 40


@pytest.mark.parametrize(
    ("strategy", "large", "what"),
    [
        (OverSizeStrategy.TrimNodes, (6, 90), "edges"),
        (OverSizeStrategy.TrimEdges, (90, 6), "nodes"),
    ],
)
def test_packing_trims_only_what_it_may(strategy, large, what):
    loader = FixedSizeDataLoader(
        [*make_graphs(3), make_graph(*large)],
        5,
        fixed_size_options=SIZES,
        fixed_size_strategy=FixedSizeStrategy.StreamPack,
        over_size_strategy=strategy,
    )
    with pytest.raises(
        RuntimeError, match=f"number of {what} required: 1 graphs .* or trim {what}"
    ):
        list(loader)


def test_packing_trims_heterogeneous_graphs_by_type():
    # Too many authors, too many papers, too many edges; together they would fit.
    graphs = [make_hetero(4, 2), make_hetero(9, 1), make_hetero(2, 2), make_hetero(1, 9)]
    graphs[2]["author", "wrote", "paper"].edge_index = torch.randint(0, 2, (2, 30))
    sizes = FixedSizeOptions({"author": 7, "paper": 6}, {WROTE: 12}, 4)
    settings = {
        "fixed_size_options": sizes,
        "fixed_size_strategy": FixedSizeStrategy.StreamPack,
    }
    with pytest.raises(RuntimeError, match="Sample 1"):
        list(FixedSizeDataLoader(graphs, 4, **settings))
    loader = FixedSizeDataLoader(
        graphs, 4, over_size_strategy=OverSizeStrategy.TrimNodesAndEdges, **settings
    )
    found = []
    for batch in loader:
        assert batch["author"].x.shape == (7, 2)
        assert batch["paper"].x.shape == (6, 3)
        assert batch[WROTE].edge_index.shape == (2, 12)
        masks = batch["author"].nodes_mask, batch["paper"].nodes_mask, batch[WROTE].edges_mask
        found.append(tuple(int(mask.sum()) for mask in masks))
    assert [sizes[:2] for sizes in found] == [(4, 2), (6, 1), (2, 2), (1, 5)]
    assert found[2][2] == 12


def test_a_batch_sampler_gives_the_mini_batches():
    graphs = make_graphs(8)
    sampler = [[0, 1], [2], [3, 4, 5], [6]]
    loader = FixedSizeDataLoader(graphs, 5, fixed_size_options=SIZES, batch_sampler=sampler)
    assert [int(batch.graphs_mask.sum()) for batch in loader] == [2, 1, 3, 1]
    options = poptorch.Options().deviceIterations(2)
    loader = FixedSizeDataLoader(
        graphs, 5, fixed_size_options=SIZES, batch_sampler=sampler, options=options
    )
    assert [batch.graphs_mask.sum().item() for batch in loader] == [3, 4]
    assert len(loader) == 4  # by the original's rule, the sampler's own length


def test_heterogeneous_datasets_are_padded_by_type():
    graphs = [make_hetero(4, 2), make_hetero(3, 3), make_hetero(2, 6)] * 4
    options = poptorch.Options().deviceIterations(3)
    loader = FixedSizeDataLoader(graphs, 3, options=options)
    batch = next(iter(loader))
    assert batch["author"].x.shape == (27, 2)
    assert batch[WROTE].edge_index.shape == (6, 11)
    assert batch.num_nodes == 9 + 13
    assert batch.num_edges == 11
    packed = FixedSizeDataLoader(
        graphs,
        4,
        fixed_size_options=FixedSizeOptions(10, 16, 4),
        fixed_size_strategy=FixedSizeStrategy.StreamPack,
    )
    assert sum(int(batch.graphs_mask.sum()) for batch in packed) == 12


@pytest.mark.parametrize("mode", [poptorch.DataLoaderMode.Sync, poptorch.DataLoaderMode.Async])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_batches_do_not_depend_on_who_makes_them(mode, num_workers):
    graphs = make_graphs(16)
    loader = FixedSizeDataLoader(
        graphs, 5, fixed_size_options=SIZES, mode=mode, num_workers=num_workers
    )
    try:
        assert torch.equal(real_labels(loader), labels(graphs))
    finally:
        loader.terminate()
        loader._iterator = None  # ends persistent workers


@pytest.mark.parametrize("strategy", FixedSizeStrategy)
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.filterwarnings("ignore:.*combined batch")  # incomplete ones at the end are dropped
def test_batches_of_graphs_can_be_rebatched(strategy, num_workers):
    """Workers load pieces of combined batches, or single mini-batches where a sampler packs."""
    graphs = make_graphs(30)
    settings = {
        "batch_size": 5,
        "fixed_size_options": FixedSizeOptions(50, 60, 5),
        "fixed_size_strategy": strategy,
        "options": poptorch.Options().deviceIterations(3),
    }
    expected = list(FixedSizeDataLoader(graphs, **settings))
    pieces = {"rebatched_worker_size": 8} if strategy is FixedSizeStrategy.PadToMax else {}
    loader = FixedSizeDataLoader(
        graphs,
        **settings,
        mode=poptorch.DataLoaderMode.AsyncRebatched,
        num_workers=num_workers,
        **pieces,
    )
    for _ in range(2):
        found = list(loader)
        assert len(found) == len(expected) > 0
        for one, other in zip(found, expected, strict=True):
            assert shapes(one) == shapes(other)
            assert one.num_nodes == other.num_nodes
            for key, value in other.to_dict().items():
                if isinstance(value, torch.Tensor):
                    assert torch.equal(one[key], value), key
    loader.terminate()


def test_keys_are_followed_and_excluded():
    loader = FixedSizeDataLoader(
        make_graphs(4),
        5,
        fixed_size_options=SIZES,
        follow_batch=["edge_attr"],
        exclude_keys=["y"],
        add_pad_masks=False,
    )
    batch = next(iter(loader))
    assert "y" not in batch
    assert "nodes_mask" not in batch
    assert batch.edge_attr_batch.shape == (40,)


def test_older_keywords_still_give_the_sizes():
    with pytest.warns(DeprecationWarning, match="fixed_size_options=FixedSizeOptions"):
        loader = FixedSizeDataLoader(
            make_graphs(4), num_nodes=30, batch_size=5, collater_args={"num_edges": 40}
        )
    assert shapes(next(iter(loader)))["edge_index"] == (2, 40)


def test_the_plain_loader_pads_what_is_left_over():
    graphs = make_graphs(6)
    loader = pyg_dataloader.FixedSizeDataLoader(graphs, 5, fixed_size_options=SIZES)
    batches = list(loader)
    assert [int(batch.graphs_mask.sum()) for batch in batches] == [4, 2]
    assert len({str(shapes(batch)) for batch in batches}) == 1
    assert not isinstance(loader, poptorch.DataLoader)


def test_pygs_loader_makes_combined_batches_of_constant_samples():
    pad = Pad(max_num_nodes=12, max_num_edges=20)
    graphs = [pad(graph) for graph in make_graphs(12)]
    options = poptorch.Options().deviceIterations(3)
    loader = DataLoader(graphs, batch_size=2, options=options, collate_fn=list)
    batches = list(loader)
    assert len(batches) == 2
    assert batches[0].x.shape == (72, 3)
    assert batches[0].edge_index.shape == (6, 40)
    plain = next(iter(pyg_dataloader.DataLoader(graphs, batch_size=2)))
    assert torch.equal(batches[0].x[:24], plain.x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = GraphConv(3, 8)
        self.readout = nn.Linear(8, 1)

    def forward(self, batch):
        h = self.conv(batch.x, batch.edge_index).relu()
        out = self.readout(global_add_pool(h, batch.batch, batch.num_graphs)).flatten()
        loss = nn.functional.mse_loss(out * batch.graphs_mask, batch.y, reduction="sum")
        return out, loss


def test_an_epoch_compiles_once_and_equals_plain_pyg():
    graphs = make_graphs(40)
    options = poptorch.Options().deviceIterations(2)
    options.showCompilationProgressBar(False)
    module, reference = Net(), Net()
    reference.load_state_dict(module.state_dict())
    optimizer = torch.optim.SGD(reference.parameters(), lr=1e-3)
    model = poptorch.trainingModel(
        module, options, poptorch.optim.SGD(module.parameters(), lr=1e-3)
    )
    sizes = FixedSizeOptions(40, 50, 5)
    loader = FixedSizeDataLoader(graphs, 5, fixed_size_options=sizes, options=options)
    for step, batch in enumerate(loader):
        model(batch)
        for start in (8 * step, 8 * step + 4):
            plain = Batch.from_data_list(graphs[start : start + 4])
            plain.graphs_mask = torch.ones(4)
            optimizer.zero_grad()
            reference(plain)[1].backward()
            optimizer.step()
    assert step == 4
    assert model._program.num_compiles == 1
    for one, two in zip(module.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-6)


def numbered(index, num_nodes, num_edges):
    """Return a graph with a number: one entry, which belongs to the graph."""
    return make_graph(num_nodes, num_edges, idx=torch.tensor([index]))


@pytest.mark.parametrize("strategy", FixedSizeStrategy)
@pytest.mark.parametrize("small", [(1, 4), (5, 1)])
def test_a_mini_batch_of_tiny_graphs_is_read_like_the_others(strategy, small):
    sizes = [(4, 3), (5, 2), small, (3, 4)]
    graphs = [numbered(i, *size) for i, size in enumerate(sizes)]
    if small[0] == 1:
        # Labels of single nodes could be either, and are refused by the original's own rule.
        for graph in graphs:
            del graph.y
    loader = FixedSizeDataLoader(
        graphs,
        batch_size=2,
        fixed_size_options=FixedSizeOptions(8, 8, 2),
        fixed_size_strategy=strategy,
    )
    batches = list(loader)
    assert [batch.idx.tolist() for batch in batches] == [[0, 0], [1, 0], [2, 0], [3, 0]]
    assert len({str(batch) for batch in batches}) == 1


def test_sizes_of_types_that_no_graph_has_do_no_harm():
    graphs = [make_hetero(2 + i % 3, 2 + i % 2) for i in range(6)]
    options = FixedSizeOptions(
        {"author": 12, "paper": 12, "venue": 4}, {WROTE: 30, ("paper", "in", "venue"): 4}, 3
    )
    loader = FixedSizeDataLoader(
        graphs,
        batch_size=3,
        fixed_size_options=options,
        fixed_size_strategy=FixedSizeStrategy.StreamPack,
    )
    assert sum(int(batch.graphs_mask.sum()) for batch in loader) == 6


def test_older_keywords_reach_the_collater():
    graphs = make_graphs(6)
    with pytest.warns(DeprecationWarning, match="fixed_size_options"):
        loader = FixedSizeDataLoader(
            graphs,
            batch_size=3,
            num_nodes=6,
            collater_args={
                "num_edges": 9,
                "trim_nodes": True,
                "trim_edges": True,
                "add_masks_to_batch": False,
            },
        )
    batch = next(iter(loader))
    assert batch.x.shape == (6, 3)
    assert batch.edge_index.shape == (2, 9)
    assert "nodes_mask" not in batch


def test_sizes_are_given_once():
    with (
        pytest.warns(DeprecationWarning, match="fixed_size_options"),
        pytest.raises(ValueError, match="num_nodes"),
    ):
        FixedSizeDataLoader(
            make_graphs(4),
            batch_size=3,
            num_nodes=50,
            fixed_size_options=FixedSizeOptions(60, 60, 3),
        )
