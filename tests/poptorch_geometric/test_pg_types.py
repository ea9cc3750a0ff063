import pytest
import torch
from _pg_graphs import WROTE, make_graph, make_hetero
from torch import nn
from torch_geometric.data import Batch, Data

import poptorch
from poptorch_geometric import PyGArgsParser, registerCustomArgParsers
from poptorch_geometric.common import DataBatch, HeteroDataBatch, call_once
from torchkiln.data import container_of


def make_options(**settings):
    options = poptorch.Options()
    options.showCompilationProgressBar(False)
    for name, value in settings.items():
        getattr(options, name)(value)
    return options


def test_batch_classes_are_pygs():
    assert type(Batch.from_data_list([make_graph()])) is DataBatch
    assert type(Batch.from_data_list([make_hetero()])) is HeteroDataBatch


def test_tensors_come_in_sorted_order_and_constants_go():
    graph, parser = make_graph(name="text"), PyGArgsParser()
    tensors = list(parser.yieldTensors(graph))
    expected = [graph[name] for name in ("edge_attr", "edge_index", "x", "y")]
    assert all(one is two for one, two in zip(tensors, expected, strict=True))
    result = parser.reconstruct(graph, iter([tensor * 2 for tensor in tensors]))
    assert type(result) is Data
    assert torch.equal(result.x, graph.x * 2)
    assert "name" not in result


def test_batches_keep_their_sizes():
    batch, parser = Batch.from_data_list([make_graph(3, 4), make_graph(2, 3)]), PyGArgsParser()
    result = parser.reconstruct(batch, parser.yieldTensors(batch))
    assert type(result) is DataBatch
    assert (result.num_nodes, result.num_edges, result.num_graphs) == (5, 7, 2)


def test_heterogeneous_stores_come_in_their_order_with_constants():
    graph, parser = make_hetero(), PyGArgsParser()
    graph.label = "kept"
    graph.u = torch.ones(1)
    tensors = list(parser.yieldTensors(graph))
    expected = [graph.u, graph["author"].x, graph["paper"].x, graph[WROTE].edge_index]
    assert all(one is two for one, two in zip(tensors, expected, strict=True))
    assert parser.reconstruct(graph, iter(tensors)).label == "kept"


def test_other_types_are_refused():
    with pytest.raises(ValueError, match="Unsupported data type"):
        list(PyGArgsParser().yieldTensors({"x": torch.ones(1)}))
    with pytest.raises(ValueError, match="Unsupported data type"):
        PyGArgsParser().reconstruct([1], iter([]))


class AddField(nn.Module):
    def forward(self, data):
        data.out = data.x * 2
        return data


@pytest.mark.parametrize("make", [make_graph, lambda: Batch.from_data_list([make_graph()] * 2)])
def test_fields_added_by_forward_come_back(make):
    data = make()
    result = poptorch.inferenceModel(AddField(), make_options())(data)
    assert type(result) is type(data)
    assert torch.equal(result.out, data.x * 2)
    assert torch.equal(result.edge_index, data.edge_index)
    assert "out" not in data


def test_dictionaries_of_tensors_are_arguments_too():
    class Sum(nn.Module):
        def forward(self, x_dict, edge_index_dict):
            source, target = edge_index_dict[WROTE]
            return x_dict["paper"][:, :2].index_add(0, target, x_dict["author"][source])

    graph = make_hetero()
    result = poptorch.inferenceModel(Sum(), make_options())(graph.x_dict, graph.edge_index_dict)
    torch.testing.assert_close(result, Sum()(graph.x_dict, graph.edge_index_dict))


def test_registered_parsers_can_be_taken_back_and_brought_back():
    from torch_geometric.data.data import BaseData

    try:
        poptorch.registerCustomArgParser(BaseData, None)
        assert container_of(make_graph()) is None
    finally:
        registerCustomArgParsers()
    assert container_of(make_graph()) is not None
    poptorch.registerCustomArgParser(BaseData, None)
    poptorch.registerGeometricCustomArgParsers()
    assert container_of(Batch.from_data_list([make_hetero()])) is not None


def test_an_own_parser_of_the_original_kind_works():
    poptorch.registerCustomArgParser(Data, PyGArgsParser())
    try:
        graph = make_graph()
        result = poptorch.inferenceModel(AddField(), make_options())(graph)
        assert torch.equal(result.out, graph.x * 2)
    finally:
        poptorch.registerCustomArgParser(Data, None)


def test_functions_are_called_once():
    calls = []
    note = call_once(calls.append)
    note(1)
    note(2)
    assert calls == [1]
