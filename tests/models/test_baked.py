"""SchNet for inference: tables once per weights, refreshed without a new program."""

import torch
from _schnet_parity import SMALL, as_fixed_batch, assert_close, make_both, run_ours

from torchkiln import Options, inference_model
from torchkiln.models import MoleculeRegression


def test_baked_predicts_what_the_model_predicts(qm9_set):
    model, _ = make_both(**SMALL, filter="table")
    batch = as_fixed_batch(qm9_set, list(range(20)))
    baked = model.bake()
    assert_close(run_ours(baked, batch), run_ours(model, batch), 1e-6)
    assert not any(parameter.requires_grad for parameter in baked.parameters())


def test_training_the_original_leaves_it_alone_until_refreshed(qm9_set):
    model, _ = make_both(**SMALL, filter="exact")
    batch = as_fixed_batch(qm9_set, list(range(20)))
    baked = model.bake()
    before = run_ours(baked, batch)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    assert torch.equal(run_ours(baked, batch), before)
    baked.refresh(model)
    assert_close(run_ours(baked, batch), run_ours(model, batch), 1e-5)


def test_a_program_follows_a_refresh_without_a_new_capture(qm9_set):
    model, _ = make_both(**SMALL)
    baked = model.bake()
    batch = as_fixed_batch(qm9_set, list(range(20)))
    program = inference_model(MoleculeRegression(baked), Options(backend="capture"))
    arguments = (batch.z, batch.edge_index, batch.edge_weight, batch.edge_ways, batch.batch)
    first, _ = program(*arguments, batch.y, batch.graph_mask)
    with torch.no_grad():
        model.lin2.weight.mul_(2)
        model.interactions[0].mlp[2].bias.add_(1)
    baked.refresh(model)
    second, _ = program(*arguments, batch.y, batch.graph_mask)
    wanted = run_ours(model, batch)[:, 0] * batch.graph_mask
    assert not torch.allclose(first, second)
    assert_close(second, wanted.detach(), 1e-5)
    assert program.num_captures == 1


def test_without_interactions_there_is_no_table(qm9_set):
    model, _ = make_both(**{**SMALL, "num_interactions": 0})
    batch = as_fixed_batch(qm9_set, [1, 2])
    assert torch.equal(run_ours(model.bake(), batch), run_ours(model, batch))


def test_tables_are_no_part_of_the_state():
    model, _ = make_both(**SMALL)
    assert set(model.bake().model.state_dict()) == set(model.state_dict())
    assert not [name for name in model.bake().state_dict() if "tables" in name]
