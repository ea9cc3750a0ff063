"""Filler changes nothing: losses and gradients of fixed-size batches are the plain batch's."""

from __future__ import annotations

import pytest
import torch
from _zoo import PRODUCTS, ZOO
from torch_geometric.data import Batch

from torchkiln import Options, training_model
from torchkiln.core import OptionsError
from torchkiln.graphs import BatchSpec, GraphStore, PadValues, collate, pad_batch

# float32 sums of the same numbers in another order.
TOLERANCE = 1e-5
FILLERS = (0.0, 1.0, 1e30)
OPTIONS = Options(backend="capture", show_progress=False)


def arguments(batch, mask):
    return batch.x, batch.edge_index, batch.edge_attr, batch.batch, batch.y, mask


def features(value):
    """Filler of every float attribute; 1e30 would not fit integers such as `z`."""
    return PadValues(attributes=dict.fromkeys(("x", "edge_attr", "y"), value))


def spec_with_room(graphs, *, nodes, edges, num_filler):
    return BatchSpec(
        sum(graph.num_nodes for graph in graphs) + nodes,
        sum(graph.num_edges for graph in graphs) + edges,
        len(graphs) + num_filler,
    )


def expected(model, graphs):
    """Loss and gradients of eager PyTorch on PyG's own batch."""
    batch = Batch.from_data_list(graphs)
    _, loss = model(*arguments(batch, torch.ones(len(graphs), dtype=torch.bool)))
    gradients = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    return loss.detach(), gradients


def trained(model, batches):
    """Loss and gradients of a program for each batch: SGD with rate 1 subtracts the gradient."""
    start = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    program = training_model(model, OPTIONS, optimizer)
    for batch in batches:
        model.load_state_dict(start)
        _, loss = program(*arguments(batch, batch.graph_mask))
        yield loss, [start[name] - value for name, value in model.named_parameters()]
    assert program.num_compiles == 1


def assert_same(found, wanted):
    (loss, gradients), (plain_loss, plain_gradients) = found, wanted
    torch.testing.assert_close(loss, plain_loss, rtol=TOLERANCE, atol=TOLERANCE)
    scale = max(g.abs().max() for g in plain_gradients if g is not None)
    assert scale > 0
    for gradient, plain in zip(gradients, plain_gradients, strict=True):
        plain = torch.zeros_like(gradient) if plain is None else plain
        torch.testing.assert_close(gradient / scale, plain / scale, rtol=TOLERANCE, atol=TOLERANCE)


def make(recipe):
    torch.manual_seed(0)
    return recipe()


def test_there_are_twelve_models():
    assert len(ZOO) == 12


@pytest.mark.parametrize("name", ZOO)
def test_padding_a_list_changes_neither_loss_nor_gradients(name, molecules):
    graphs = molecules[:12]
    wanted = expected(make(ZOO[name]), graphs)
    spec = spec_with_room(graphs, nodes=37, edges=61, num_filler=1)
    batches = [pad_batch(graphs, spec, pad=features(filler)) for filler in FILLERS]
    for found in trained(make(ZOO[name]), batches):
        assert_same(found, wanted)


@pytest.mark.parametrize("name", ZOO)
def test_packing_from_a_store_changes_neither_loss_nor_gradients(name, molecules):
    wanted = expected(make(ZOO[name]), molecules[20:35])
    spec = spec_with_room(molecules[20:35], nodes=5, edges=8, num_filler=9)
    store = GraphStore.from_dataset(molecules, progress=False)
    batches = [collate(store, range(20, 35), spec, pad=features(filler)) for filler in FILLERS]
    for found in trained(make(ZOO[name]), batches):
        assert_same(found, wanted)


@pytest.mark.parametrize("name", PRODUCTS)
def test_moderate_filler_is_inert_where_features_are_multiplied(name, molecules):
    graphs = molecules[:12]
    # As full as a batch can be: one filler node, no filler edge.
    spec = spec_with_room(graphs, nodes=1, edges=0, num_filler=1)
    [found] = trained(make(PRODUCTS[name]), [pad_batch(graphs, spec, pad=features(7.0))])
    assert_same(found, expected(make(PRODUCTS[name]), graphs))


def test_a_batch_of_filler_only_has_no_loss_and_no_gradient(molecules):
    batch = pad_batch([], BatchSpec(20, 30, 3), like=molecules[0])
    [(loss, gradients)] = trained(make(ZOO["gin"]), [batch])
    assert loss == 0
    assert all(not gradient.any() for gradient in gradients)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("where", ["node", "edge", "graph"])
def test_pad_values_that_are_not_finite_are_refused(where, value):
    with pytest.raises(OptionsError, match=f"pad value of {where}.*finite"):
        PadValues(**{where: value})
    with pytest.raises(OptionsError, match="finite"):
        PadValues(attributes={"x": value})
