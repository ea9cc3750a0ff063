"""Whole training runs: packed programs against plain PyG with Adam."""

import copy

import pytest
import torch
from _schnet_parity import (
    SMALL,
    as_pyg_batch,
    assert_close,
    make_both,
    regression_arguments,
    run_pyg,
)

from torchkiln import Options, training_model
from torchkiln.graphs import FixedSizeLoader
from torchkiln.models import MoleculeRegression

NUM_STEPS = 20
# What the issue asks for; rounding alone stays far below.
LOSS_TOLERANCE = 1e-4


def train_pyg(model, dataset, batches):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    losses = []
    for indices in batches:
        batch = as_pyg_batch(dataset, indices)
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(run_pyg(model, batch)[:, 0], batch.y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def train_packed(model, dataset, options, num_nodes):
    """Return the losses of the steps, and the molecules of each batch."""
    loader = FixedSizeLoader(dataset.store, num_nodes=num_nodes, shuffle=True, seed=3)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    program = training_model(MoleculeRegression(model), options, optimizer)
    losses, batches = [], []
    while len(losses) < NUM_STEPS:
        for batch in loader:
            losses.append(program(*regression_arguments(batch))[1].item())
            batches.append(batch.index[batch.graph_mask].flatten().tolist())
            if len(losses) == NUM_STEPS:
                break
    assert len({len(indices) for indices in batches}) > 1, "packs hold different numbers"
    assert program.num_captures == 1
    return losses, batches


@pytest.mark.parametrize("filter_form", ["exact", "table"])
def test_twenty_packed_steps_have_the_losses_of_pyg(qm9_set, filter_form):
    ours, theirs = make_both(**SMALL, filter=filter_form)
    losses, batches = train_packed(ours, qm9_set, Options(backend="capture"), num_nodes=200)
    assert losses == pytest.approx(train_pyg(theirs, qm9_set, batches), rel=LOSS_TOLERANCE)
    assert sum(losses[:5]) > 1.2 * sum(losses[-5:]), "it learns"


@pytest.mark.slow
@pytest.mark.inductor
@pytest.mark.parametrize("filter_form", ["exact", "table"])
@pytest.mark.parametrize(("features", "blocks", "gaussians"), [(128, 6, 50), (100, 4, 25)])
def test_native_code_of_both_sizes_has_the_losses_of_pyg(
    qm9_set, features, blocks, gaussians, filter_form, cache_dir
):
    sizes = {"hidden_channels": features, "num_filters": features}
    sizes |= {"num_interactions": blocks, "num_gaussians": gaussians}
    ours, theirs = make_both(**sizes, filter=filter_form)
    options = Options(cache_dir=cache_dir, show_progress=False)
    losses, batches = train_packed(ours, qm9_set, options, num_nodes=300)
    assert losses == pytest.approx(train_pyg(theirs, qm9_set, batches), rel=LOSS_TOLERANCE)


@pytest.mark.inductor
def test_native_code_trains_as_eager_does(qm9_set, cache_dir):
    ours, _ = make_both(**SMALL, filter="table")
    eager = copy.deepcopy(ours)
    loader = FixedSizeLoader(qm9_set.store, num_nodes=300)
    results = {}
    for backend, model in (("inductor", ours), ("eager", eager)):
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        options = Options(backend=backend, cache_dir=cache_dir, show_progress=False)
        program = training_model(MoleculeRegression(model), options, optimizer)
        results[backend] = [program(*regression_arguments(batch))[1].item() for batch in loader]
        assert program.num_compiles == (backend == "inductor")
    assert results["inductor"] == pytest.approx(results["eager"], rel=1e-5)
    for name, value in eager.state_dict().items():
        assert_close(ours.state_dict()[name], value, 1e-4, name)
