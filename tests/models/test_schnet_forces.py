"""Forces: from coordinates through tables of filters to energies, and back; training on them."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from _schnet_parity import (
    SMALL,
    as_fixed_batch,
    as_pyg_batch,
    assert_close,
    gradients,
    in_double,
    make_both,
    run_pyg,
)
from torch import nn

from torchkiln import Options, identity_loss, training_model

INDICES = [5, 21, 40]
MODEL = {**SMALL, "num_interactions": 2}
# Small: random forces have steep slopes at random weights.
LEARNING_RATE = 1e-6
# The cubic's slope errs with the third power of the spacing, where its values do with the fourth.
INTERPOLATION = 1e-5


class ForceField(nn.Module):
    """Energies and forces from coordinates, with the loss of both."""

    def __init__(self, model, batch):
        super().__init__()
        self.model = model
        self.batch = batch

    def evaluate(self, pos):
        batch = self.batch
        first, second = batch.edge_index
        distances = (pos[first] - pos[second]).norm(dim=1)
        energies = self.model(
            batch.z,
            batch.edge_index,
            distances,
            batch.batch,
            num_graphs=len(batch.graph_mask),
            edge_ways=batch.edge_ways,
        )[: len(INDICES), 0]
        (slope,) = torch.autograd.grad(energies.sum(), pos, create_graph=True)
        return energies, -slope

    def forward(self, pos, energies, forces):
        found_energies, found_forces = self.evaluate(pos.detach().requires_grad_())
        loss = F.mse_loss(found_energies, energies) + F.mse_loss(found_forces, forces)
        return identity_loss(loss, reduction="none")


def make_fields(dataset, dtype):
    """Return the same model with exact filters and with tables, and coordinates with targets."""
    model, theirs = make_both(**MODEL)
    batch = as_fixed_batch(dataset, INDICES)
    plain = as_pyg_batch(dataset, INDICES)
    pos = torch.zeros(len(batch.z), 3, dtype=dtype)
    pos[: len(plain.pos)] = plain.pos.to(dtype)
    fields = {}
    for form in ("exact", "table"):
        some = in_double(model) if dtype is torch.double else in_double(model).float()
        some.filter = form
        fields[form] = ForceField(some, batch)
    generator = torch.Generator().manual_seed(0)
    energies = torch.randn(len(INDICES), generator=generator).to(dtype)
    forces = torch.randn(pos.shape, generator=generator).to(dtype)
    return fields, theirs, plain, (pos, energies, forces)


@pytest.mark.parametrize("form", ["exact", "table"])
def test_forces_are_those_of_pyg(qm9_set, form):
    fields, theirs, plain, (pos, *_) = make_fields(qm9_set, torch.double)
    theirs = in_double(theirs)
    plain.pos = plain.pos.double().requires_grad_()
    first, second = plain.edge_index
    plain.edge_weight = (plain.pos[first] - plain.pos[second]).norm(dim=1)
    (slope,) = torch.autograd.grad(run_pyg(theirs, plain).sum(), plain.pos)
    _, forces = fields[form].evaluate(pos.requires_grad_())
    assert_close(forces[: len(slope)], -slope, INTERPOLATION)
    assert (forces[len(slope) :] == 0).all()


def test_training_on_forces_has_the_gradients_of_exact_filters(qm9_set):
    """Second derivatives: by coordinates and by weights."""
    fields, _, _, inputs = make_fields(qm9_set, torch.double)
    found = {form: gradients(field, field(*inputs)) for form, field in fields.items()}
    for name, grad in found["exact"].items():
        assert_close(found["table"][name], grad, INTERPOLATION, name)
    assert found["exact"]["model.interactions.0.mlp.0.weight"].abs().max() > 0


def test_a_captured_program_trains_on_forces(qm9_set):
    fields, _, _, inputs = make_fields(qm9_set, torch.float)
    field, twin = fields["table"], fields["exact"]
    options = Options(backend="capture", show_progress=False)
    program = training_model(field, options, torch.optim.SGD(field.parameters(), lr=LEARNING_RATE))
    optimizer = torch.optim.SGD(twin.parameters(), lr=LEARNING_RATE)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = twin(*inputs)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
        assert float(program(*inputs)) == pytest.approx(losses[-1], rel=1e-4)
    assert losses[-1] < losses[0]
