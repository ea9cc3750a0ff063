"""SchNet gives what PyG's gives: outputs, gradients, weights both ways, filler or not."""

import pytest
import torch
from _schnet_parity import (
    GRADIENT_TOLERANCE,
    OUTPUT_TOLERANCE,
    SMALL,
    as_fixed_batch,
    as_pyg_batch,
    assert_close,
    gradients,
    make_both,
    run_ours,
    run_pyg,
)
from torch_geometric.nn.models import SchNet as PygSchNet

from torchkiln.core import ArgumentError, OptionsError
from torchkiln.datasets import directed_edges
from torchkiln.graphs import PadValues
from torchkiln.models import SchNet

INDICES = list(range(0, 60, 2))
ATOM_VALUES = torch.linspace(-3, 2, 100)[:, None]
VARIANTS = {
    "add": {},
    "mean": {"readout": "mean"},
    "scaled": {"mean": -1.5, "std": 2.5},
    "atomref": {"atomref": ATOM_VALUES},
    "all": {"readout": "mean", "mean": -1.5, "std": 2.5, "atomref": ATOM_VALUES},
}


@pytest.mark.parametrize("filter_form", ["exact", "table"])
def test_the_published_size_predicts_what_pyg_predicts(qm9_set, filter_form):
    ours, theirs = make_both(filter=filter_form)
    wanted = run_pyg(theirs, as_pyg_batch(qm9_set, INDICES))
    got = run_ours(ours, as_fixed_batch(qm9_set, INDICES))
    assert_close(got[: len(INDICES)], wanted, OUTPUT_TOLERANCE)


@pytest.mark.parametrize("filter_form", ["exact", "table"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_predictions_and_gradients_are_those_of_pyg(qm9_set, variant, filter_form):
    ours, theirs = make_both(**SMALL, **VARIANTS[variant], filter=filter_form)
    batch = as_fixed_batch(qm9_set, INDICES)
    wanted = run_pyg(theirs, as_pyg_batch(qm9_set, INDICES))
    got = run_ours(ours, batch)[batch.graph_mask]
    assert_close(got, wanted, OUTPUT_TOLERANCE)
    # Not symmetric about 0: the bias of the mean would have no gradient but rounding.
    weights = torch.linspace(-1, 2, len(INDICES))[:, None]
    expected = gradients(theirs, (wanted * weights).sum())
    for name, grad in gradients(ours, (got * weights).sum()).items():
        assert_close(grad, expected[name], GRADIENT_TOLERANCE, name)


@pytest.mark.parametrize("filter_form", ["exact", "table"])
def test_one_sided_graphs_are_followed(one_sided_set, filter_form):
    assert (one_sided_set.store[7].edge_ways < 3).any()
    ours, theirs = make_both(**SMALL, cutoff=6.0, filter=filter_form)
    wanted = run_pyg(theirs, as_pyg_batch(one_sided_set, INDICES))
    got = run_ours(ours, as_fixed_batch(one_sided_set, INDICES))
    assert_close(got[: len(INDICES)], wanted, OUTPUT_TOLERANCE)


@pytest.mark.parametrize("filter_form", ["exact", "table"])
def test_pairs_and_directed_edges_are_the_same_graph(one_sided_set, filter_form):
    ours, _ = make_both(**SMALL, cutoff=6.0, filter=filter_form)
    batch = as_fixed_batch(one_sided_set, INDICES)
    edges, distances = directed_edges(batch.edge_index, batch.edge_weight, batch.edge_ways)
    num_graphs = len(batch.graph_mask)
    directed = ours(batch.z, edges, distances, batch.batch, num_graphs=num_graphs)
    assert_close(run_ours(ours, batch), directed, 1e-6)


@pytest.mark.parametrize("readout", ["add", "mean"])
@pytest.mark.parametrize("filter_form", ["exact", "table"])
def test_filler_of_any_value_changes_nothing(qm9_set, filter_form, readout):
    ours, _ = make_both(**SMALL, readout=readout, filter=filter_form)
    plain = as_fixed_batch(qm9_set, INDICES, room=1.0)
    odd = PadValues(node=7, edge=1e3, graph=-5.0, attributes={"edge_ways": 0})
    padded = as_fixed_batch(qm9_set, INDICES, pad=odd, room=2.0)
    assert (padded.edge_weight[~padded.edge_mask] == 1e3).all()
    results = []
    for batch in (plain, padded):
        out = run_ours(ours, batch)
        assert out.isfinite().all()
        real = out[batch.graph_mask]
        results.append((real, gradients(ours, real.square().sum())))
    (real, grads), (real_padded, grads_padded) = results
    assert_close(real_padded, real, 1e-6)
    for name, grad in grads.items():
        assert_close(grads_padded[name], grad, 1e-5, name)


def test_filler_may_carry_messages_to_filler(qm9_set):
    """Directed edges have no ways: self-loops of filler then count, among filler."""
    ours, theirs = make_both(**SMALL)
    batch = as_fixed_batch(qm9_set, [3, 4], pad=PadValues(node=6, edge=2.0))
    edges, distances = directed_edges(batch.edge_index, batch.edge_weight, batch.edge_ways)
    stray = torch.tensor([[len(batch.z) - 1], [len(batch.z) - 1]])
    edges, distances = torch.cat([edges, stray], 1), torch.cat([distances, torch.ones(1)])
    got = ours(batch.z, edges, distances, batch.batch, num_graphs=len(batch.graph_mask))
    assert_close(got[:2], run_pyg(theirs, as_pyg_batch(qm9_set, [3, 4])), OUTPUT_TOLERANCE)


def test_dipole_moments_are_those_of_pyg(qm9_set, monkeypatch):
    import sys
    import types

    from torchkiln.models._elements import atomic_masses

    table = types.SimpleNamespace(atomic_masses=atomic_masses().numpy())
    monkeypatch.setitem(sys.modules, "ase", types.SimpleNamespace(data=table))
    ours, theirs = make_both(**SMALL, dipole=True)
    plain = as_pyg_batch(qm9_set, INDICES)
    batch = as_fixed_batch(qm9_set, INDICES)
    pos = torch.zeros(len(batch.z), 3)
    pos[batch.node_mask] = plain.pos
    wanted, got = run_pyg(theirs, plain), run_ours(ours, batch, pos=pos)[batch.graph_mask]
    assert_close(got, wanted, OUTPUT_TOLERANCE)
    expected = gradients(theirs, wanted.sum())
    for name, grad in gradients(ours, got.sum()).items():
        assert_close(grad, expected[name], GRADIENT_TOLERANCE, name)
    with pytest.raises(ArgumentError, match="pos="):
        run_ours(ours, batch)


def test_masses_of_familiar_elements():
    from torchkiln.models._elements import atomic_masses

    masses = atomic_masses()
    assert len(masses) == 119
    assert masses[[1, 6, 7, 8, 9, 92]].tolist() == pytest.approx(
        [1.008, 12.011, 14.007, 15.999, 18.998, 238.029], abs=1e-3
    )


@pytest.mark.parametrize("arguments", [{}, {**SMALL, "atomref": ATOM_VALUES}], ids=["A", "small"])
def test_the_same_seed_gives_the_weights_of_pyg(arguments):
    torch.manual_seed(5)
    ours = SchNet(**arguments).state_dict()
    torch.manual_seed(5)
    theirs = PygSchNet(**arguments, interaction_graph=lambda pos, batch: None).state_dict()
    assert list(ours) == list(theirs)
    for name, value in theirs.items():
        assert torch.equal(ours[name], value), name


def test_weights_load_both_ways():
    ours, theirs = make_both(**SMALL)
    fresh = SchNet(**SMALL)
    fresh.load_state_dict(theirs.state_dict(), strict=True)
    theirs.load_state_dict(fresh.state_dict(), strict=True)
    assert all(
        torch.equal(value, ours.state_dict()[name]) for name, value in fresh.state_dict().items()
    )


def test_no_interactions_is_a_sum_over_elements(qm9_set):
    ours, theirs = make_both(**{**SMALL, "num_interactions": 0}, filter="table")
    got = run_ours(ours, as_fixed_batch(qm9_set, [5, 6]))
    assert_close(got[:2], run_pyg(theirs, as_pyg_batch(qm9_set, [5, 6])), OUTPUT_TOLERANCE)


@pytest.mark.parametrize("filter_form", ["exact", "table"])
def test_forces_are_derivatives_of_the_energy(qm9_set, filter_form):
    model, _ = make_both(**SMALL, filter=filter_form)
    model = model.double()
    batch = as_fixed_batch(qm9_set, [40])
    distances = batch.edge_weight.double().requires_grad_()

    def energy(at):
        return model(
            batch.z,
            batch.edge_index,
            at,
            batch.batch,
            num_graphs=len(batch.graph_mask),
            edge_ways=batch.edge_ways,
        )[0, 0]

    (slope,) = torch.autograd.grad(energy(distances), distances)
    direction = torch.cos(torch.arange(len(distances), dtype=torch.double))
    step = 1e-6
    measured = (energy(distances + step * direction) - energy(distances - step * direction)) / (
        2 * step
    )
    assert (slope * direction).sum().item() == pytest.approx(measured.item(), rel=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"readout": "max"}, "'max'"),
        ({"filter": "spline"}, "'spline'"),
        ({"num_gaussians": 1}, "num_gaussians must be at least 2"),
        ({"cutoff": 0.0}, "cutoff"),
        ({"num_knots": 3}, "4 knots"),
    ],
)
def test_senseless_arguments_are_refused(arguments, message):
    with pytest.raises(OptionsError, match=message):
        SchNet(**arguments)
