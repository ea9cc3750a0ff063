import numpy as np
import pytest
import torch
from _pg_graphs import WROTE, load_mutag, make_graph, make_graphs, make_hetero
from torch_geometric.loader import DataLoader

from poptorch_geometric import FixedSizeOptions
from poptorch_geometric.collate import FixedSizeCollater
from torchkiln.core import OptionsError
from torchkiln.graphs import BatchSpec


def test_defaults_follow_the_number_of_nodes():
    options = FixedSizeOptions(10)
    assert (options.num_nodes, options.num_edges, options.num_graphs) == (10, 90, 2)
    assert FixedSizeOptions(10, 0).num_edges == 90
    assert FixedSizeOptions({"a": 3, "b": 4}).num_edges == 42
    assert (options.node_pad_value, options.edge_pad_value, options.graph_pad_value) == (0, 0, 0)
    assert options.pad_graph_defaults == {}


@pytest.mark.parametrize("num_graphs", [1, 0])
def test_there_must_be_room_for_a_padding_graph(num_graphs):
    with pytest.raises(ValueError, match="num_graphs must be at least 2"):
        FixedSizeOptions(10, num_graphs=num_graphs)
    with pytest.raises(ValueError, match="batch_size must be at least 2"):
        FixedSizeOptions.from_dataset([make_graph()], num_graphs)


@pytest.mark.parametrize("name", ["node_pad_value", "edge_pad_value", "graph_pad_value"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_pad_values_must_be_finite(name, value):
    with pytest.raises(ValueError, match="use a finite number"):
        FixedSizeOptions(10, **{name: value})


def test_sizes_by_type():
    options = FixedSizeOptions(10, 12)
    assert not options.is_hetero()
    assert (options.total_num_nodes, options.total_num_edges) == (10, 12)
    assert options.to_hetero(["a", "b"], [("a", "to", "b")]) is options
    assert options.is_hetero()
    assert options.num_nodes == {"a": 10, "b": 10}
    assert (options.total_num_nodes, options.total_num_edges) == (20, 12)


def test_sizes_from_a_dataset_fit_the_largest_graphs(tmp_path):
    options = FixedSizeOptions.from_dataset(load_mutag(tmp_path), 10)
    assert (options.num_nodes, options.num_edges, options.num_graphs) == (253, 595, 10)


def test_sizes_from_a_heterogeneous_dataset_are_by_type():
    graphs = [make_hetero(4, 2), make_hetero(3, 6)]
    options = FixedSizeOptions.from_dataset(graphs, 4)
    assert options.num_nodes == {"author": 13, "paper": 19}
    assert options.num_edges == {WROTE: 16}


def test_a_progress_bar_is_shown_on_demand(capsys, watched):
    FixedSizeOptions.from_dataset([make_graph()], 2, progress_bar=True)
    assert "Reading sizes" in capsys.readouterr().err
    FixedSizeOptions.from_dataset([make_graph()], 2)
    assert capsys.readouterr().err == ""


def test_sizes_from_a_loader_have_one_to_spare():
    graphs = [make_graph(3, 4), make_graph(5, 6), make_graph(2, 9)]
    options = FixedSizeOptions.from_loader(DataLoader(graphs, batch_size=2), sample_limit=5)
    assert (options.num_nodes, options.num_edges, options.num_graphs) == (9, 11, 3)


def test_items_that_are_no_batches_count_as_one_graph():
    options = FixedSizeOptions.from_loader([make_graph(3, 4), make_graph(5, 2)])
    assert (options.num_nodes, options.num_edges, options.num_graphs) == (6, 5, 2)
    options = FixedSizeOptions.from_loader([make_hetero(3, 1), make_hetero(1, 2)])
    assert options.num_nodes == {"author": 4, "paper": 3}


def test_an_empty_loader_is_an_error():
    with pytest.raises(ValueError, match="yields no mini-batch"):
        FixedSizeOptions.from_loader([])


def test_repr_lists_all_fields():
    text = repr(FixedSizeOptions(10, 12, 3, pad_graph_defaults={"name": ""}))
    assert "num_nodes=10 (At least one node reserved for padding)" in text
    assert "num_edges=12 (At least one edge" in text
    assert "num_graphs=3 (At least one graph" in text
    assert "pad_graph_defaults={'name': ''}" in text


def test_tensors_are_cast_to_the_dtype_of_the_attribute():
    from poptorch_geometric.collate import FixedSizeCollater

    graph = make_graph(z=torch.ones(3, dtype=torch.int16))
    batch = FixedSizeCollater(FixedSizeOptions(6, 8, node_pad_value=2.0))([graph])
    assert batch.z.tolist() == [1, 1, 1, 2, 2, 2]
    assert batch.z.dtype == torch.int16


@pytest.mark.parametrize("number", [np.int64, np.int32, torch.tensor])
def test_sizes_may_be_numbers_of_arrays_and_tensors(number):
    options = FixedSizeOptions(number(20), number(30), number(3))
    assert (type(options.num_nodes), type(options.num_graphs)) == (int, int)
    spec = BatchSpec(number(20), number(30), number(3))
    assert (type(spec.num_edges), type(spec.num_graphs)) == (int, int)
    batch = FixedSizeCollater(options)(make_graphs(2))
    assert (batch.x.shape, batch.edge_index.shape) == ((20, 3), (2, 30))
    typed = FixedSizeOptions({"author": number(20), "paper": number(9)}, {WROTE: number(15)}, 3)
    batch = FixedSizeCollater(typed)([make_hetero(), make_hetero()])
    assert batch["paper"].x.shape == (9, 3)


def test_sizes_that_are_no_whole_numbers_are_refused():
    with pytest.raises(ValueError, match=r"num_nodes.*20\.5"):
        FixedSizeOptions(20.5, 30)
    with pytest.raises(OptionsError, match=r"num_nodes.*20\.5"):
        BatchSpec(20.5, 30, 2)
    with pytest.raises(ValueError, match=r"num_edges.*'30'"):
        FixedSizeOptions(20, {WROTE: "30"})
