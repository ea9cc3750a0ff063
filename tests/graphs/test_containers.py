import subprocess
import sys

import pytest
import torch
from torch import nn
from torch_geometric.data import Batch, Data, HeteroData, TemporalData
from torch_geometric.nn import GraphConv, global_add_pool

from torchkiln import Options, identity_loss, inference_model, training_model
from torchkiln.core import ShapeChanged
from torchkiln.data import flatten, rebuild
from torchkiln.data._structure import paths
from torchkiln.graphs import BatchSpec
from torchkiln.graphs._containers import GraphContainer
from torchkiln.graphs._errors import GraphError
from torchkiln.graphs.batches._combine import combine
from torchkiln.graphs.batches._pad import pad_batch
from torchkiln.runtime.cache._fast_key import fast_key
from torchkiln.runtime.compile._builder import _constants

CAPTURE = Options(backend="capture", show_progress=False)


def make_graph(num_nodes=3, num_edges=4, **extra):
    return Data(
        y=torch.randn(1),
        edge_index=torch.randint(0, num_nodes, (2, num_edges)),
        x=torch.randn(num_nodes, 3),
        **extra,
    )


def make_batch(**extra):
    return pad_batch([make_graph(**extra), make_graph(2, 3, **extra)], BatchSpec(10, 12, 4))


def make_hetero_batch():
    graph = HeteroData()
    graph["a"].x = torch.randn(3, 2)
    graph["b"].x = torch.randn(2, 2)
    graph["a", "to", "b"].edge_index = torch.tensor([[0, 2], [1, 0]])
    graph["b"].tag = "kept"
    spec = BatchSpec({"a": 6, "b": 5}, {("a", "to", "b"): 4}, 2)
    return pad_batch([graph], spec)


def test_tensors_come_out_by_sorted_name_and_go_back():
    graph = make_graph(name="gone")
    tensors, node = flatten(graph, "graph")
    assert paths(node) == ["graph.edge_index", "graph.x", "graph.y"]
    result = rebuild(node, [tensor + 1 for tensor in tensors])
    assert list(result.stores[0]) == ["x", "edge_index", "y"]
    assert torch.equal(result.x, graph.x + 1)
    assert "gone" in graph.name  # the given object is as before


def test_a_rebuilt_batch_has_the_sizes_of_the_original():
    batch = make_batch()
    result = combine([batch, make_batch()])
    assert repr(result) == (
        "DataBatch(x=[20, 3], edge_index=[4, 12], y=[8], batch=[20], edge_mask=[24], "
        "graph_mask=[8], node_mask=[20], ptr=[10], num_nodes=10, num_edges=12)"
    )
    assert result.num_graphs == 4
    assert torch.equal(result.edge_index[:2], batch.edge_index)


def test_heterogeneous_batches_keep_constants_and_sizes_by_type():
    first, second = make_hetero_batch(), make_hetero_batch()
    result = combine([first, second])
    assert result["a", "to", "b"].edge_index.shape == (4, 4)
    assert result["b"].x.shape == (10, 2)
    assert (result.num_nodes, result.num_edges, result.num_graphs) == (11, 4, 2)
    assert result["b"].tag == ["kept", "kept"]
    assert "b.x" in GraphContainer().names(result)


def test_dropped_attributes_are_reported_once(caplog):
    with caplog.at_level("DEBUG", "torchkiln.graphs"):
        for _ in range(3):
            assert "caption" not in combine([make_batch(caption="text")])
    assert [record.message for record in caplog.records] == [
        "combined batches hold tensors only; dropped: caption"
    ]


def test_subclasses_keep_their_class_and_stored_sizes():
    class Molecule(Data):
        pass

    result = rebuild(flatten(g := Molecule(x=torch.ones(2, 1), num_nodes=2))[1], [g.x * 2])
    assert type(result) is Molecule
    assert result.num_nodes == 2


def test_other_objects_of_pyg_are_refused():
    with pytest.raises(GraphError, match="Unsupported data type TemporalData"):
        flatten(TemporalData(src=torch.ones(1)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = GraphConv(3, 8)
        self.readout = nn.Linear(8, 1)

    def forward(self, batch):
        h = self.conv(batch.x, batch.edge_index).relu()
        batch.out = self.readout(global_add_pool(h, batch.batch, batch.num_graphs)).flatten()
        loss = ((batch.out - batch.y) ** 2 * batch.graph_mask).sum()
        return batch, identity_loss(loss, "none")


@pytest.mark.parametrize("backend", ["capture", "eager"])
def test_whole_batches_go_through_training_and_come_back_with_new_fields(backend):
    batch, module = make_batch(), Net()
    expected = module(batch.clone())[0].out.detach()
    program = training_model(module, CAPTURE.replace(backend=backend))
    result, _ = program(batch)
    assert type(result) is type(batch)
    torch.testing.assert_close(result.out, expected)
    assert "out" not in batch
    assert result.num_graphs == 4


def test_combined_batches_are_cut_into_the_mini_batches():
    batches, module = [make_batch() for _ in range(4)], Net()
    options = CAPTURE.replace(device_iterations=2, gradient_accumulation=2, output_mode="all")
    reference = Net()
    reference.load_state_dict(module.state_dict())
    result, losses = training_model(module, options)(combine(batches))
    expected = [reference(batch.clone()) for batch in batches[:2]]
    torch.testing.assert_close(losses[:2], torch.stack([loss for _, loss in expected]).detach())
    torch.testing.assert_close(result.out[:8], torch.cat([b.out for b, _ in expected]).detach())
    assert result.edge_index.shape == (8, 12)
    assert torch.equal(result.edge_index, combine(batches).edge_index)


class Mix(nn.Module):
    def forward(self, graph):
        source, target = graph["a", "to", "b"].edge_index
        messages = graph["a"].x[source]
        graph["b"].out = graph["b"].x.index_add(0, target, messages)
        graph.count = graph["b"].x.new_ones(graph["b"].num_nodes) + graph["b"].x.sum() * 0
        return graph


def test_heterogeneous_batches_go_in_and_out():
    batches = [make_hetero_batch(), make_hetero_batch()]
    result = inference_model(Mix(), CAPTURE.replace(device_iterations=2))(combine(batches))
    expected = torch.cat([Mix()(batch)["b"].out for batch in batches])
    torch.testing.assert_close(result["b"].out, expected)
    assert result.count.tolist() == [1] * 10  # num_nodes was 5 in each of the two


class Double(nn.Module):
    def forward(self, graph):
        return Data(x=graph.x * 2, edge_index=graph.edge_index)


def test_plain_graphs_go_in_and_new_ones_come_out():
    graph = make_graph()
    result = inference_model(Double(), CAPTURE)(graph)
    assert type(result) is Data
    assert torch.equal(result.x, graph.x * 2)


def test_a_batch_that_differs_is_refused_by_the_name_of_what_differs():
    program = inference_model(Double(), CAPTURE)
    program(make_graph())
    with pytest.raises(ShapeChanged, match=r"Shape mismatch for graph\.edge_index"):
        program(make_graph(num_edges=5))
    renamed = make_graph()
    renamed.pos = renamed.x
    del renamed.x
    with pytest.raises(ShapeChanged, match=r"Missing arguments: x; Unexpected arguments: pos"):
        program(renamed)


def test_another_number_of_graphs_is_refused():
    program = inference_model(Double(), CAPTURE)
    graphs = [make_graph(4, 4), make_graph(2, 4)]
    program(Batch.from_data_list(graphs, exclude_keys=["y"]))
    other = Batch.from_data_list(graphs, exclude_keys=["y"])
    other._num_graphs = 3
    with pytest.raises(ShapeChanged, match=r"Value mismatch for graph\.num_graphs: expected 2"):
        program(other)


def key_of(batch):
    return fast_key(nn.Linear(1, 1), _constants(flatten(batch, "batch")[1]))


def test_values_of_tensors_are_no_part_of_the_fast_key_and_sizes_are():
    # Large tensors: hashed by value, they would give no key at all.
    graphs = [Data(x=torch.randn(3, 100_000)), Data(x=torch.randn(2, 100_000))]
    first = key_of(Batch.from_data_list(graphs))
    assert first is not None
    graphs[0].x = torch.randn(3, 100_000)
    assert key_of(Batch.from_data_list(graphs)) == first
    assert key_of(Batch.from_data_list(graphs[:1])) != first
    graphs = [Data(pos=graph.x) for graph in graphs]
    assert key_of(Batch.from_data_list(graphs)) != first


def test_constants_of_heterogeneous_graphs_are_part_of_the_fast_key():
    one, other = make_hetero_batch(), make_hetero_batch()
    assert key_of(one) == key_of(other) is not None
    other["b"].tag = ["changed", "kept"]
    assert key_of(one) != key_of(other)


SCRIPT = """
import sys
import poptorch
assert "torch_geometric" not in sys.modules
import torch
from torch_geometric.data import Data
class Double(torch.nn.Module):
    def forward(self, graph):
        return Data(x=graph.x * 2)
options = poptorch.Options()
options.showCompilationProgressBar(False)
print(poptorch.inferenceModel(Double(), options)(Data(x=torch.ones(1))).x.tolist())
assert "poptorch_geometric" not in sys.modules
"""


def test_poptorch_alone_takes_graphs_and_does_not_load_pyg():
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        timeout=120,
        env={"TORCHKILN_BACKEND": "capture", "PATH": ""},
    )
    assert done.stdout.strip() == "[2.0]", done.stderr
