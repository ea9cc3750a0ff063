"""make_static: same parameters, same numbers, and a list of what was changed."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
import torch_geometric.nn as pyg
from _layer_samples import SLOTS, F, Sample, padded_sample, plain_sample
from torch import Tensor, nn
from torch_geometric.data import Batch, Data

from torchkiln.core import ArgumentError, DynamicShapeError, Options, OptionsError
from torchkiln.graphs import BatchSpec
from torchkiln.graphs.layers import batch_form, make_static
from torchkiln.runtime import identity_loss, inference_model, training_model

CAPTURE = Options(backend="capture", show_progress=False)
SPEC = BatchSpec(SLOTS["nodes"], SLOTS["edges"], SLOTS["graphs"])


class Net(nn.Module):
    """What a PyG user writes: self-loops, BatchNorm, pooling without a size."""

    def __init__(self):
        super().__init__()
        self.first = pyg.GCNConv(F, F, cached=True)
        self.norm = pyg.BatchNorm(F)
        self.second = pyg.GATConv(F, F)
        self.head = nn.Sequential(nn.Linear(F, F), nn.BatchNorm1d(F), nn.Linear(F, 1))

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor, y, node_mask, graph_mask):
        self.first._cached_edge_index = None
        x = self.norm(self.first(x, edge_index)).relu()
        x = self.second(x, edge_index).relu()
        out = self.head(pyg.global_mean_pool(x, batch)).squeeze(-1)
        count = graph_mask.sum().clamp(min=1)
        error = torch.where(graph_mask, out - y[:, 0], 0.0)
        return out, identity_loss(error.square().sum() / count, reduction="none")


def arguments(s: Sample) -> tuple[Tensor, ...]:
    return s.x, s.edge_index, s.batch, s.y, s.node_mask, s.graph_mask


def trained(net: nn.Module, samples: list[Sample]) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Return losses and state after one SGD step in plain PyTorch on each sample."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    losses = []
    for sample in samples:
        loss = net(*arguments(sample))[1]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses, net.state_dict()


def test_padded_program_trains_like_eager_pyg():
    torch.manual_seed(0)
    net = Net()
    static = make_static(copy.deepcopy(net), SPEC, verbose=False)
    plain = [plain_sample(seed) for seed in range(3)]
    losses, state = trained(net, plain)
    program = training_model(static, CAPTURE, torch.optim.SGD(static.parameters(), lr=0.1))
    got = [program(*arguments(padded_sample(sample)))[1] for sample in plain]
    assert program.num_captures == 1
    torch.testing.assert_close(got, losses, atol=1e-5, rtol=1e-5)
    for name, value in static.state_dict().items():
        torch.testing.assert_close(value, state[name], atol=1e-5, rtol=1e-5, msg=name)


def test_outside_programs_the_numbers_stay():
    torch.manual_seed(0)
    net = Net()
    static = make_static(copy.deepcopy(net), SPEC, verbose=False)
    sample = plain_sample()
    out, loss = static(*arguments(sample))
    assert out.shape == (sample.graphs,)
    torch.testing.assert_close((out, loss), net(*arguments(sample)), atol=1e-6, rtol=1e-5)


def test_parameters_and_keys_stay():
    net = Net()
    before = dict(net.named_parameters())
    keys = list(net.state_dict())
    assert make_static(net, SPEC, verbose=False) is net
    assert list(net.state_dict()) == keys
    assert all(parameter is before[name] for name, parameter in net.named_parameters())
    assert isinstance(net.head[1], nn.BatchNorm1d)


def test_the_report_is_printed_and_kept(capsys):
    net = make_static(Net(), SPEC)
    printed = capsys.readouterr().err
    assert str(net.static_report) in printed
    changes = dict(net.static_report.changes)
    assert "BatchNorm1d takes its statistics over real rows only" in changes["norm.module"]
    assert changes["second"].startswith("GATConv: self-loops")
    assert f"{SLOTS['graphs']} graphs" in changes[""]
    assert "first: GCNConv: self-loops as weights" in printed
    assert "first: GCNConv(cached=True)" in printed


def test_a_second_call_changes_nothing():
    net = make_static(Net(), SPEC, verbose=False)
    hooks = len(net.second._forward_pre_hooks)
    again = make_static(net, SPEC, verbose=False)
    assert again.static_report.changes == ()
    assert len(net.second._forward_pre_hooks) == hooks


def test_an_unknown_layer_with_self_loops_is_named():
    class Own(nn.Module):
        add_self_loops = True

        def forward(self, x):
            return x

    net = make_static(nn.Sequential(Own()), verbose=False)
    ((place, advice),) = net.static_report.remaining
    assert place == "0"
    assert "AddRemainingSelfLoops" in advice


def test_contradicting_sizes_are_refused():
    with pytest.raises(OptionsError, match="num_graphs=3 contradicts the spec's 5"):
        make_static(Net(), SPEC, num_graphs=3)


def test_copies_and_pickles_stay_static():
    torch.manual_seed(0)
    static = make_static(Net(), SPEC, verbose=False)
    static.eval()
    sample = padded_sample(plain_sample())
    expected = static(*arguments(sample))
    for twin in (copy.deepcopy(static), pickle.loads(pickle.dumps(static))):
        program = inference_model(twin, CAPTURE)
        torch.testing.assert_close(program(*arguments(sample)), expected)


def test_without_it_the_error_names_the_layer_and_both_ways():
    sample = plain_sample()
    with pytest.raises(DynamicShapeError) as caught:
        inference_model(pyg.GATConv(F, F), CAPTURE)(sample.x, sample.edge_index)
    message = str(caught.value)
    assert "GATConv adds self-loops" in message
    assert "add_self_loops=False" in message
    assert "AddRemainingSelfLoops" in message
    assert "make_static" in message


@pytest.mark.parametrize("kind", ["pool", "aggregation"])
def test_missing_sizes_name_both_ways(kind):
    class Pool(nn.Module):
        def __init__(self):
            super().__init__()
            self.mean = pyg.MeanAggregation()

        def forward(self, x, batch):
            return pyg.global_add_pool(x, batch) if kind == "pool" else self.mean(x, batch)

    sample = plain_sample()
    with pytest.raises(DynamicShapeError, match=r"size=.*make_static"):
        inference_model(Pool(), CAPTURE)(sample.x, sample.batch)


def test_selection_pooling_says_what_to_use_instead():
    sample = plain_sample()
    with pytest.raises(DynamicShapeError, match="dense_mincut_pool"):
        inference_model(pyg.TopKPooling(F), CAPTURE)(sample.x, sample.edge_index)


def test_attention_weights_of_a_static_layer_are_refused():
    sample = plain_sample()
    layer = make_static(pyg.GATConv(F, F), verbose=False)
    with pytest.raises(ArgumentError, match="cannot return attention weights"):
        inference_model(layer, CAPTURE)(sample.x, sample.edge_index, return_attention_weights=True)
    # Outside programs the layer is PyG's.
    out, _ = layer(sample.x, sample.edge_index, return_attention_weights=True)
    assert out.shape == (sample.nodes, F)


@pytest.mark.parametrize("fill", [0.5, "add", "max", torch.tensor([1.0, 2.0, 3.0, 4.0])])
@pytest.mark.parametrize("kind", [pyg.GATConv, pyg.GATv2Conv])
def test_attributes_of_new_loops_follow_fill_value(kind, fill):
    sample = plain_sample()
    layer = kind(F, F, edge_dim=4, fill_value=fill)
    expected = layer(sample.x, sample.edge_index, sample.edge_attr)
    program = inference_model(make_static(layer, verbose=False), CAPTURE)
    got = program(sample.x, sample.edge_index, sample.edge_attr)
    torch.testing.assert_close(got, expected.detach())


def test_bipartite_attention():
    sample = plain_sample()
    layer = pyg.GATConv((F, F), F)
    pair = (sample.x, sample.x2[:10])
    edges = sample.edge_index[:, sample.edge_index[1] < 10]
    expected = layer(pair, edges)
    program = inference_model(make_static(layer, verbose=False), CAPTURE)
    torch.testing.assert_close(program(pair, edges), expected.detach())


@pytest.mark.parametrize("weighted", [True, False])
def test_improved_gcn_has_pygs_loops(weighted):
    sample = plain_sample()
    layer = pyg.GCNConv(F, F, improved=True)
    args = (sample.x, sample.edge_index, *([sample.edge_weight] if weighted else []))
    expected = layer(*args)
    program = inference_model(make_static(layer, verbose=False), CAPTURE)
    torch.testing.assert_close(program(*args), expected)


class OnData(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, data) -> Tensor:
        return pyg.global_add_pool(self.norm(self.lin(data.x)), data.batch)


@pytest.mark.parametrize("name", ["node_mask", "nodes_mask"])
def test_masks_are_found_in_data_objects(name):
    torch.manual_seed(0)
    graphs = [Data(x=torch.randn(n, 3)) for n in (3, 2)]
    filler = Data(x=torch.full((2, 3), 50.0))
    net = OnData()
    expected = copy.deepcopy(net)(Batch.from_data_list(graphs))
    padded = Batch.from_data_list([*graphs, filler])
    padded[name] = torch.arange(7) < 5
    static = make_static(net, verbose=False)
    torch.testing.assert_close(static(padded)[:2], expected)


def test_a_form_can_be_set_around_a_call():
    x = torch.randn(6, 4)
    norm = make_static(nn.BatchNorm1d(4), verbose=False)
    mask = torch.arange(6) < 4
    with batch_form(node_mask=mask):
        out = norm(x)
    torch.testing.assert_close(out[:4], nn.BatchNorm1d(4)(x[:4]))


def test_a_graph_mask_tells_the_number_of_graphs():
    class Pool(nn.Module):
        def forward(self, x, batch, graph_mask):
            return pyg.global_mean_pool(x, batch)

    sample = padded_sample(plain_sample())
    program = inference_model(make_static(Pool(), verbose=False), CAPTURE)
    assert program(sample.x, sample.batch, sample.graph_mask).shape == (SLOTS["graphs"], F)


def test_lazy_layers_are_initialised_by_the_program():
    sample = padded_sample(plain_sample())
    net = make_static(pyg.GCNConv(-1, 4), verbose=False)
    assert inference_model(net, CAPTURE)(sample.x, sample.edge_index).shape == (SLOTS["nodes"], 4)


def test_a_failed_forward_leaves_no_form_behind():
    class Failing(nn.Module):
        def forward(self, x, node_mask):
            raise KeyError

    net = make_static(Failing(), verbose=False)
    with pytest.raises(KeyError):
        net(torch.ones(3, 2), torch.ones(3, dtype=torch.bool))
    # The masks of the failed call must not reach this layer of four rows.
    norm = make_static(nn.BatchNorm1d(2), verbose=False)
    assert norm(torch.randn(4, 2)).shape == (4, 2)
