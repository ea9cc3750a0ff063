"""The tables inside `nn.Module`, as Torchkiln relies on them."""

import pytest
import torch
from torch import nn

from torchkiln.torch_internals._fake_tensors import fake_mode
from torchkiln.torch_internals._fx import record_graph
from torchkiln.torch_internals._modules import (
    BUFFERS,
    MODULES,
    PARAMETERS,
    BatchNormBase,
    RunningNormBase,
    buffers_of,
    calls_replaced,
    check_batch_norm_input,
    children_of,
    class_name_of,
    forward_pre_hooks_of,
    parameters_of,
)


def test_what_is_put_into_the_table_of_parameters_is_what_forward_sees():
    layer = nn.Linear(2, 2, bias=False)
    own, other = layer.weight, torch.zeros(2, 2)
    assert parameters_of(layer) == {"weight": own, "bias": None}
    parameters_of(layer)["weight"] = other
    assert layer.weight is other
    assert not layer(torch.ones(1, 2)).any()


def test_what_is_put_into_the_table_of_buffers_is_what_forward_sees():
    norm = nn.BatchNorm1d(2)
    assert set(buffers_of(norm)) == {"running_mean", "running_var", "num_batches_tracked"}
    other = torch.ones(2)
    buffers_of(norm)["running_mean"] = other
    assert norm.running_mean is other


def test_the_three_tables_are_all_that_a_module_holds_its_parts_in():
    model = nn.Sequential(nn.BatchNorm1d(2))
    assert {PARAMETERS, BUFFERS, MODULES} <= set(vars(model))
    parts = (nn.Module, torch.Tensor)
    others = {
        key: value
        for key, value in vars(model).items()
        if key not in (PARAMETERS, BUFFERS, MODULES)
    }
    for key, value in others.items():
        if "hooks" in key:
            continue
        held = value.values() if isinstance(value, dict) else [value]
        assert not any(isinstance(part, parts) for part in held), key
    assert vars(model)[MODULES]["0"] is model[0]
    assert vars(model[0])[PARAMETERS] is parameters_of(model[0])
    assert vars(model[0])[BUFFERS] is buffers_of(model[0])


def test_the_table_of_children_holds_repeated_ones_and_none():
    model = nn.Module()
    model.first = nn.ReLU()
    model.again = model.first
    model.register_module("absent", None)
    assert children_of(model) == {"first": model.first, "again": model.first, "absent": None}


def test_a_module_prints_under_its_own_name():
    assert class_name_of(nn.Linear(1, 1)) == "Linear"


def test_hooks_before_forward_can_be_taken_out_of_their_table():
    layer, calls = nn.ReLU(), []
    layer.register_forward_pre_hook(lambda module, args: calls.append(1))
    hooks = forward_pre_hooks_of(layer)
    (key,) = hooks
    layer(torch.zeros(1))
    del hooks[key]
    layer(torch.zeros(1))
    assert calls == [1]


@pytest.mark.parametrize("kind", [nn.BatchNorm1d, nn.BatchNorm2d, nn.SyncBatchNorm])
def test_batch_norms_have_one_base(kind):
    assert issubclass(kind, BatchNormBase)
    assert "forward" in vars(BatchNormBase)


def test_norms_with_running_statistics_have_one_base():
    assert issubclass(BatchNormBase, RunningNormBase)
    assert issubclass(nn.InstanceNorm1d, RunningNormBase)
    assert not issubclass(nn.LayerNorm, RunningNormBase)


def test_a_batch_norm_refuses_a_wrong_number_of_dimensions():
    check_batch_norm_input(nn.BatchNorm1d(2), torch.zeros(3, 2))
    with pytest.raises(ValueError, match="expected 2D or 3D input"):
        check_batch_norm_input(nn.BatchNorm1d(2), torch.zeros(2, 2, 2, 2))


def test_casting_a_module_goes_through_apply():
    """`models/_grid.py` overrides `_apply`: its values are computed anew in the new dtype."""
    seen = []

    class Grid(nn.Module):
        def _apply(self, fn, recurse=True):
            seen.append(fn(torch.zeros(1)).dtype)
            return super()._apply(fn, recurse)

    nn.Sequential(Grid()).double()
    assert seen == [torch.float64]


def test_calls_of_modules_can_be_replaced_also_while_a_graph_is_recorded():
    model, names = nn.Sequential(nn.ReLU(), nn.Tanh()), []

    def make(original):
        def call(module, *args, **kwargs):
            names.append(type(module).__name__)
            return original(module, *args, **kwargs)

        return call

    with calls_replaced(make):
        model(torch.zeros(2))
        mode = fake_mode()
        x = mode.from_tensor(torch.zeros(2))
        with mode:
            record_graph(lambda x: [model(x)], [x], {})
    assert names == ["Sequential", "ReLU", "Tanh"] * 2
    model(torch.zeros(2))
    assert len(names) == 6
