"""The loss counts real molecules only, by mask."""

import pytest
import torch
from _schnet_parity import (
    SMALL,
    as_fixed_batch,
    as_pyg_batch,
    assert_close,
    gradients,
    make_both,
    regression_arguments,
    run_pyg,
)

from torchkiln import Options, training_model
from torchkiln.core import ArgumentError, OptionsError
from torchkiln.graphs import BatchSpec, PadValues, collate
from torchkiln.models import MoleculeRegression

INDICES = list(range(0, 50, 3))
TORCH_LOSSES = {"mse": torch.nn.functional.mse_loss, "mae": torch.nn.functional.l1_loss}


@pytest.mark.parametrize("loss", ["mse", "mae"])
def test_loss_and_gradients_are_those_of_pyg_with_torch(qm9_set, loss):
    ours, theirs = make_both(**SMALL)
    pad = PadValues(graph=99.0)
    batch, plain = as_fixed_batch(qm9_set, INDICES, pad=pad), as_pyg_batch(qm9_set, INDICES)
    prediction, got = MoleculeRegression(ours, loss)(*regression_arguments(batch))
    wanted = TORCH_LOSSES[loss](run_pyg(theirs, plain)[:, 0], plain.y)
    assert_close(got, wanted, 1e-5)
    assert prediction.shape == batch.graph_mask.shape
    assert (prediction[~batch.graph_mask] == 0).all()
    expected = gradients(theirs, wanted)
    for name, grad in gradients(ours, got).items():
        assert_close(grad, expected[name], 1e-4, name)


def test_a_target_of_zero_is_a_molecule_like_any_other(qm9_set):
    ours, _ = make_both(**SMALL)
    batch = as_fixed_batch(qm9_set, INDICES)
    batch.y = torch.zeros_like(batch.y)
    prediction, loss = MoleculeRegression(ours)(*regression_arguments(batch))
    assert loss.item() == pytest.approx(prediction.square().sum().item() / len(INDICES), rel=1e-6)


def test_a_batch_of_filler_only_has_no_loss_and_no_gradient(qm9_set):
    ours, _ = make_both(**SMALL)
    batch = collate(qm9_set.store, [], BatchSpec(20, 30, 4))
    assert not batch.graph_mask.any()
    _, loss = MoleculeRegression(ours)(*regression_arguments(batch))
    assert loss.item() == 0
    assert all((grad == 0).all() for grad in gradients(ours, loss).values())


def test_targets_as_a_column_are_the_same(qm9_set):
    module = MoleculeRegression(make_both(**SMALL)[0])
    *others, y, mask = regression_arguments(as_fixed_batch(qm9_set, INDICES))
    assert torch.equal(module(*others, y, mask)[1], module(*others, y[:, None], mask)[1])


def test_several_targets_are_refused(qm9_set):
    module = MoleculeRegression(make_both(**SMALL)[0])
    *others, y, mask = regression_arguments(as_fixed_batch(qm9_set, INDICES))
    with pytest.raises(ArgumentError, match="one target"):
        module(*others, torch.stack([y, y], 1), mask)


def test_an_unknown_loss_is_refused():
    with pytest.raises(OptionsError, match="'huber'"):
        MoleculeRegression(torch.nn.Identity(), "huber")


@pytest.mark.parametrize("loss", ["mse", "mae"])
def test_a_program_finds_the_loss(qm9_set, loss):
    module = MoleculeRegression(make_both(**SMALL)[0], loss)
    arguments = regression_arguments(as_fixed_batch(qm9_set, INDICES))
    wanted = module(*arguments)[1].detach()
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-6)
    program = training_model(module, Options(backend="capture"), optimizer)
    _, first = program(*arguments)
    assert_close(first, wanted, 1e-6)
    _, second = program(*arguments)
    assert second < first
