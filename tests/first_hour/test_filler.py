"""First hour of a PyG user: losses on padded batches. Each test is a mistake and its answer."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import nn
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GraphConv, global_mean_pool

from torchkiln import Options, training_model
from torchkiln.core import ArgumentError, OptionsError
from torchkiln.graphs import (
    FixedSizeLoader,
    GraphStore,
    PadValues,
    collate,
    masked_cross_entropy,
    masked_mse_loss,
)

OPTIONS = Options(backend="capture", show_progress=False)


def molecule(index: int) -> Data:
    nodes = 3 + index % 4
    ring = torch.arange(nodes)
    x = torch.randn(nodes, 4, generator=torch.Generator().manual_seed(index))
    return Data(x=x, edge_index=torch.stack([ring, ring.roll(1)]), y=torch.tensor([index % 2]))


MOLECULES = [molecule(index) for index in range(6)]


class Classifier(nn.Module):
    """As it is written for PyG's own loader."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.conv = GraphConv(4, 16)
        self.head = nn.Linear(16, 2)

    def predict(self, batch):
        hidden = self.conv(batch.x, batch.edge_index).relu()
        return self.head(global_mean_pool(hidden, batch.batch, size=batch.num_graphs))

    def forward(self, batch):
        return F.cross_entropy(self.predict(batch), batch.y)


class MaskedClassifier(Classifier):
    def forward(self, batch):
        return masked_cross_entropy(self.predict(batch), batch.y, batch.graph_mask)


def padded(**settings):
    return next(iter(FixedSizeLoader(MOLECULES, num_nodes=40, options=OPTIONS, **settings)))


def unpadded_loss() -> torch.Tensor:
    return Classifier()(next(iter(DataLoader(MOLECULES, batch_size=len(MOLECULES)))))


def test_a_plain_loss_on_a_padded_batch_is_told_that_it_counts_filler():
    program = training_model(Classifier(), OPTIONS)
    with pytest.warns(UserWarning, match=r"counts filler.*masked_cross_entropy") as caught:
        loss = program(padded())
    assert "\n" not in str(caught[0].message)
    assert not torch.isclose(loss, unpadded_loss())  # the reason for the warning


@pytest.mark.parametrize("backend", ["eager", "capture"])
def test_the_rewrite_that_the_warning_names_gives_the_loss_of_pyg(backend):
    options = Options(backend=backend, show_progress=False)
    loss = training_model(MaskedClassifier(), options)(padded())
    torch.testing.assert_close(loss, unpadded_loss())


@pytest.mark.parametrize("backend", ["eager", "capture"])
def test_labels_padded_with_the_ignored_class_give_the_loss_of_pyg_as_it_stands(backend):
    options = Options(backend=backend, show_progress=False)
    batch = padded(pad=PadValues(attributes={"y": -100}))
    torch.testing.assert_close(training_model(Classifier(), options)(batch), unpadded_loss())


def test_an_ignored_class_that_the_labels_cannot_hold_names_the_attribute():
    small = [Data(x=m.x, edge_index=m.edge_index, y=m.y.to(torch.uint8)) for m in MOLECULES]
    pad = PadValues(attributes={"y": -100})
    with pytest.raises(OptionsError, match=r"pad value -100 of attribute 'y' does not fit"):
        FixedSizeLoader(small, num_nodes=40, pad=pad)


def test_the_mask_of_nodes_on_values_of_graphs_is_refused_with_the_right_one():
    batch = padded()
    with pytest.raises(ArgumentError, match="graph_mask for values of graphs"):
        masked_cross_entropy(torch.zeros(batch.num_graphs, 2), batch.y, batch.node_mask)


def test_a_column_against_a_row_is_refused_instead_of_compared_with_each_other():
    batch = padded()
    prediction = torch.zeros(batch.num_graphs, 1)
    with pytest.raises(ArgumentError, match="give both the same shape"):
        masked_mse_loss(prediction, batch.y.float(), batch.graph_mask)


@pytest.mark.parametrize("backend", ["eager", "capture"])
def test_a_batch_of_filler_only_changes_no_weight_whatever_the_remedy(backend):
    store = GraphStore.from_dataset(MOLECULES, progress=False)
    spec = FixedSizeLoader(store, num_nodes=40).spec
    empty = collate(store, [], spec, pad=PadValues(attributes={"y": -100}))
    for model, is_expected in ((MaskedClassifier(), lambda x: x == 0), (Classifier(), torch.isnan)):
        before = {name: value.clone() for name, value in model.state_dict().items()}
        program = training_model(model, Options(backend=backend, show_progress=False))
        assert is_expected(program(empty))
        torch.testing.assert_close(dict(model.state_dict()), before, rtol=0, atol=0)
