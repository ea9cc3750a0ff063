"""The Cora part of "PyTorch Geometric at a glance" runs block by block, straight from the text."""

import contextlib
import io
import re
import shutil

import pytest
import torch
from _seed_document import find_block, read_blocks, shared_file
from torch import nn
from torch_geometric.data import Data

import poptorch
from torchkiln.core import DynamicShapeError

DOCUMENT = "001_0163a70115128137.txt"
# Same random numbers, same arithmetic in another order, five steps.
PARITY = 1e-5
# The document's own losses come from another dropout stream.
DOCUMENT_TOLERANCE = 5e-3


@pytest.fixture(scope="module")
def blocks():
    return read_blocks(DOCUMENT)


@pytest.fixture
def namespace(blocks, tmp_path, monkeypatch):
    """What the document has defined when it has loaded Cora."""
    shutil.copytree(shared_file("data", "Cora"), tmp_path / "Cora" / "raw")
    monkeypatch.setenv("DATASETS_DIR", str(tmp_path))
    names = {"__name__": "document"}
    run(find_block(blocks, "DATASETS_DIR", language="python"), names)
    run(find_block(blocks, "Planetoid", "import torch_geometric.transforms"), names)
    return names


def run(block, names):
    """Execute a block and return what it printed."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(block.compiled(), names)
    return printed.getvalue()


def losses_in(text):
    return [float(number) for number in re.findall(r"Loss: ([0-9.]+)", text)]


def test_dataset_is_the_documents(namespace):
    assert str(namespace["data"]) == (
        "Data(x=[2708, 1433], edge_index=[2, 10556], y=[2708], train_mask=[2708], "
        "val_mask=[2708], test_mask=[2708])"
    )


def test_ported_model_trains_as_the_cpu_block_does(blocks, namespace):
    on_cpu = losses_in(run(find_block(blocks, "Training on CPU.", language="python"), namespace))
    ported = losses_in(run(find_block(blocks, "Training on IPU.", language="python"), namespace))
    printed = losses_in(find_block(blocks, "Training on IPU.", language="output").text)
    assert len(ported) == 5
    assert ported == pytest.approx(on_cpu, rel=PARITY)
    assert ported == pytest.approx(printed, rel=DOCUMENT_TOLERANCE)
    assert namespace["poptorch_model"]._program.num_compiles == 1


class BlockModule(nn.Module):
    """Runs a block of the document as the body of forward, on a `data` made of its inputs."""

    def __init__(self, block, result, **names):
        super().__init__()
        self.code = block.compiled()
        self.result = result
        self.names = names

    def forward(self, **tensors):
        names = {"torch": torch, "F": nn.functional, "data": Data(**tensors), **self.names}
        exec(self.code, names)
        return names[self.result]


def small_graph():
    torch.manual_seed(0)
    return {
        "x": torch.randn(6, 10),
        "y": torch.randint(0, 10, (6,)),
        "train_mask": torch.tensor([True, False, True, True, False, False]),
        "edge_index": torch.tensor([[0, 1, 2, 3, 4, 4], [1, 2, 3, 4, 5, 4]]),
        "batch": torch.zeros(6, dtype=torch.long),
    }


def assert_refused(model, inputs, *fragments):
    with pytest.raises(poptorch.Error) as refused:
        poptorch.inferenceModel(model)(**inputs)
    assert isinstance(refused.value.__context__, DynamicShapeError)
    for fragment in (DOCUMENT, *fragments):
        assert fragment in refused.value.message


def test_boolean_indexing_is_refused_and_its_rewrite_agrees(blocks):
    graph = small_graph()
    dynamic = BlockModule(find_block(blocks, "x = data.x[data.train_mask]"), "loss")
    static = BlockModule(find_block(blocks, "torch.where(data.train_mask"), "loss")
    assert_refused(dynamic, graph, "x = data.x[data.train_mask]", "torch.where")
    torch.testing.assert_close(poptorch.inferenceModel(static)(**graph), dynamic(**graph))


def test_pooling_without_a_size_is_refused_and_its_rewrite_agrees(blocks):
    graph = small_graph()
    pool = find_block(blocks, "x = global_mean_pool(data.x, data.batch)")
    sized = find_block(blocks, "size=batch_size)", "batch_size = 1")
    imported = {}
    exec(pool.text.splitlines()[0], imported)
    dynamic = BlockModule(pool, "x")
    static = BlockModule(sized, "x", global_mean_pool=imported["global_mean_pool"])
    assert_refused(dynamic, graph, "global_mean_pool(data.x, data.batch)", "size=")
    torch.testing.assert_close(poptorch.inferenceModel(static)(**graph), dynamic(**graph))


class Convolution(nn.Module):
    def __init__(self, conv):
        super().__init__()
        self.conv = conv

    def forward(self, x, edge_index):
        return self.conv(x, edge_index)


def test_self_loops_in_the_layer_are_refused_and_the_transform_agrees(blocks):
    from torch_geometric.nn import GCNConv

    graph = {key: small_graph()[key] for key in ("x", "edge_index")}
    names = {"GCNConv": GCNConv}
    run(find_block(blocks, "conv = GCNConv(in_channels=10, out_channels=10)"), names)
    with_loops = Convolution(names["conv"])
    run(find_block(blocks, "out_channels=10, add_self_loops=False"), names)
    run(find_block(blocks, "transform = T.AddSelfLoops()"), names)
    static = Convolution(names["conv"])
    static.load_state_dict(with_loops.state_dict())
    with pytest.raises(poptorch.Error, match="add_self_loops=False"):
        poptorch.inferenceModel(with_loops)(**graph)
    # The transform doubles an existing loop, which the layer leaves alone: start without one.
    edges = graph["edge_index"][:, graph["edge_index"][0] != graph["edge_index"][1]]
    looped = names["transform"](Data(x=graph["x"], edge_index=edges))
    torch.testing.assert_close(
        poptorch.inferenceModel(static)(looped.x, looped.edge_index),
        with_loops(graph["x"], edges),
    )
