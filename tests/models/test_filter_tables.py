"""Tables of filters: as exact as they claim, trained through, chosen where they pay."""

import copy
import math

import pytest
import torch
from _schnet_parity import (
    SMALL,
    as_fixed_batch,
    assert_close,
    gradients,
    in_double,
    make_both,
    run_ours,
)

from torchkiln.core import OptionsError
from torchkiln.models import SchNet
from torchkiln.models._filters import GaussianSmearing, cosine_cutoff
from torchkiln.models._grid import FilterGrid, knots_for
from torchkiln.models._spline import num_values, spline_weights, value_steps
from torchkiln.ops import refine

INDICES = list(range(40))


def sharpened(model: SchNet, factor: float = 3.0) -> SchNet:
    """Filters that change as fast as trained ones: larger weights of the filter networks."""
    with torch.no_grad():
        for block in model.blocks:
            for parameter in block.mlp.parameters():
                parameter.mul_(factor)
    return model


def values_at_knots(tables: torch.Tensor) -> torch.Tensor:
    """Return what splines with these coefficients are at all knots but the first and last."""
    return (tables[:-2] + 4 * tables[1:-1] + tables[2:]) / 6


def test_the_published_size_has_1024_knots():
    assert knots_for(50) == 1024
    assert SchNet(num_gaussians=25).num_knots == knots_for(25) == 496
    assert knots_for(2) >= 4


def test_networks_are_evaluated_at_every_fourth_knot_and_beyond_the_ends():
    expansion = GaussianSmearing(0.0, 10.0, 20)
    grid = FilterGrid(expansion, 10.0, 101)
    assert grid.num_evaluated == len(grid.smeared) == 45
    distances = (torch.arange(45, dtype=torch.float64) * 4 - 37) * 10 / 98
    assert_close(grid.smeared, expansion(distances).float(), 1e-6)
    assert_close(grid.envelope, cosine_cutoff(distances, 10.0).float(), 1e-6)


@pytest.mark.parametrize("num_knots", [4, 400, 401, 402, 403])
def test_splines_go_through_the_filters(num_knots):
    """At the knots they are the filters, as far as every fourth value says enough."""
    model, _ = make_both(**SMALL)
    model = model.double()
    model.num_knots = num_knots
    knots = torch.arange(num_knots - 2, dtype=torch.float64) * model.grid.spacing
    smeared, envelope = model.distance_expansion(knots), cosine_cutoff(knots, model.cutoff)
    tolerance = 1e-6 if num_knots > 4 else 100
    for table, block in zip(model.tables(), model.blocks, strict=True):
        assert table.shape == (num_knots, SMALL["num_filters"])
        assert_close(values_at_knots(table), block.mlp(smeared) * envelope, tolerance)


def test_constants_stay_constants():
    weights = spline_weights()
    ones = torch.ones(num_values(9), 1, dtype=torch.float64)
    assert_close(refine(ones, weights, 9), torch.ones(9, 1).double(), 1e-14)


def test_the_grid_of_double_precision_is_not_a_cast_of_single_precision():
    model, _ = make_both(**SMALL)
    want = SchNet(**SMALL).double().grid
    there_and_back = model.double().float().double()
    steps = value_steps(model.num_knots, torch.device("cpu"))
    distances = (steps - 1) * model.grid.spacing
    assert_close(there_and_back.grid.envelope, cosine_cutoff(distances, model.cutoff), 1e-15)
    assert torch.equal(there_and_back.grid.smeared, want.smeared)
    assert torch.equal(there_and_back.grid.weights, spline_weights())
    assert not any(key.startswith("grid") for key in model.state_dict())


def test_the_grid_follows_gaussians_that_are_loaded():
    model, other = SchNet(**SMALL), SchNet(**SMALL)
    other.distance_expansion.offset.add_(0.1)
    before = model.grid.smeared
    model.load_state_dict(other.state_dict())
    other.grid.lay()
    assert torch.equal(model.grid.smeared, other.grid.smeared)
    # Programs that were compiled before go on with the same tensor.
    assert model.grid.smeared is before


def test_the_error_of_a_spline_falls_with_the_fourth_power():
    model = sharpened(make_both(**SMALL)[0]).double()
    errors = []
    for num_knots in (803, 1603, 3203):
        model.num_knots = num_knots
        errors.append(model.table_error())
    assert errors[0] / errors[1] == pytest.approx(16, rel=0.25)
    assert errors[1] / errors[2] == pytest.approx(16, rel=0.25)


def test_default_tables_are_exact_to_float32(qm9_set):
    """Energy and gradient err as little as those of exact filters, against float64."""
    model = sharpened(make_both(**SMALL)[0])
    batch = as_fixed_batch(qm9_set, INDICES)

    def evaluate(some):
        out = run_ours(some, batch)[batch.graph_mask]
        flat = [grad.flatten() for grad in gradients(some, out.square().mean()).values()]
        return out.detach(), torch.cat(flat)

    truth, true_gradient = evaluate(in_double(model))
    errors = {}
    for form in ("exact", "table"):
        model.filter = form
        out, gradient = evaluate(model)
        errors[form] = (
            ((out - truth).norm() / truth.norm()).item(),
            ((gradient - true_gradient).norm() / true_gradient.norm()).item(),
        )
    assert errors["table"][0] <= 2 * errors["exact"][0] + 1e-7, errors
    assert errors["table"][1] <= 5 * errors["exact"][1] + 1e-7, errors


def test_gradients_of_the_table_are_its_own(qm9_set):
    """In float64 tables and exact filters differ by interpolation only; so do the gradients."""
    model, _ = make_both(**SMALL)
    model = model.double()
    batch = as_fixed_batch(qm9_set, INDICES)
    found = {}
    for form in ("exact", "table"):
        model.filter = form
        found[form] = gradients(model, run_ours(model, batch)[batch.graph_mask].square().mean())
    for name, grad in found["exact"].items():
        assert_close(found["table"][name], grad, 1e-6, name)


def test_choose_knots_takes_the_smallest_that_is_exact_enough():
    model = sharpened(make_both(**SMALL)[0])
    chosen = model.choose_knots(1e-3)
    assert model.num_knots == chosen
    assert model.table_error() <= 1e-3
    model.num_knots = chosen // 2
    assert model.table_error() > 1e-3


def test_an_impossible_tolerance_is_an_error_and_changes_nothing():
    model, _ = make_both(**SMALL)
    before = model.num_knots
    with pytest.raises(OptionsError, match="filter='exact'"):
        model.choose_knots(1e-12)
    assert model.num_knots == before


def test_auto_takes_a_table_only_where_it_pays():
    model = SchNet(**SMALL, filter="auto", num_knots=500)
    assert model.grid.num_evaluated == 144
    assert not model.uses_table(400)
    assert model.uses_table(1000)


def test_auto_predicts_the_same_either_way(qm9_set):
    model, _ = make_both(**SMALL, filter="auto")
    batch = as_fixed_batch(qm9_set, INDICES)
    results = []
    for num_knots in (batch.edge_index.shape[1] // 4, 2 * batch.edge_index.shape[1]):
        model.num_knots = num_knots
        results.append((model.uses_table(batch.edge_index.shape[1]), run_ours(model, batch)))
    assert [uses for uses, _ in results] == [True, False]
    assert_close(results[0][1][batch.graph_mask], results[1][1][batch.graph_mask], 1e-5)


def test_distances_outside_the_table_carry_no_message(qm9_set):
    model, _ = make_both(**SMALL, filter="table")
    batch = as_fixed_batch(qm9_set, [50], room=1.0)
    far = copy.copy(batch)
    far.edge_weight = torch.full_like(batch.edge_weight, 11.0)
    apart = copy.copy(batch)
    apart.edge_ways = torch.zeros_like(batch.edge_ways)
    assert torch.equal(run_ours(model, far)[:1], run_ours(model, apart)[:1])


def test_faint_gaussians_are_cut_off_without_a_trace():
    from torch_geometric.nn.models.schnet import GaussianSmearing as Original

    ours, theirs = GaussianSmearing(0.0, 10.0, 50).double(), Original(0.0, 10.0, 50).double()
    weights = torch.randn(50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = []
    for smear in (ours, theirs):
        distances = torch.linspace(0, 12, 97, dtype=torch.float64, requires_grad=True)
        values = smear(distances)
        (slopes,) = torch.autograd.grad((values @ weights).sum(), distances, create_graph=True)
        (curvatures,) = torch.autograd.grad(slopes.sum(), distances)
        found.append((values, slopes, curvatures))
    assert (found[0][0] == 0).any()
    for mine, original in zip(*found, strict=True):
        torch.testing.assert_close(mine, original, rtol=1e-14, atol=1e-15)


def test_a_smeared_nan_shows():
    assert GaussianSmearing(0.0, 10.0, 5)(torch.tensor([torch.nan])).isnan().all()


def test_spoilt_weights_have_no_exact_table():
    model, _ = make_both(**SMALL)
    with torch.no_grad():
        model.blocks[-1].mlp.second.bias[0] = torch.nan
    assert math.isnan(model.table_error())
    with pytest.raises(OptionsError, match="err by nan"):
        model.choose_knots(1e-3)


def test_filters_of_zero_have_an_exact_table():
    model, _ = make_both(**SMALL)
    with torch.no_grad():
        for block in model.blocks:
            block.mlp.second.weight.zero_()
            block.mlp.second.bias.zero_()
    assert model.table_error() == 0
