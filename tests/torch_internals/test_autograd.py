"""Autograd and the dispatcher, as Torchkiln relies on them."""

import pytest
import torch
from torch import nn

from torchkiln.torch_internals._autograd import (
    TorchDispatchMode,
    backward_functions,
    below_autograd,
    is_in_backward,
    last_sequence_number,
    mkldnn_is_enabled,
    schema_of,
    set_mkldnn_enabled,
)

aten = torch.ops.aten


def test_nothing_is_recorded_below_autograd():
    weight = torch.ones(2, requires_grad=True)
    with below_autograd():
        assert (weight * 2).grad_fn is None
    assert (weight * 2).grad_fn is not None


def test_backward_is_known_from_inside():
    seen = []
    weight = torch.ones(2, requires_grad=True)
    product = weight * 2
    product.register_hook(lambda grad: seen.append(is_in_backward()))
    assert not is_in_backward()
    product.sum().backward()
    assert seen == [True]
    assert not is_in_backward()


def test_a_schema_tells_what_an_operator_writes():
    schema = schema_of(aten.add_.Tensor)
    assert schema.name == "aten::add_"
    assert schema.is_mutable
    first, second, alpha = schema.arguments
    assert first.alias_info.is_write
    assert second.alias_info is None
    assert (alpha.name, alpha.default_value) == ("alpha", 1)
    assert not schema_of(aten.add.Tensor).is_mutable


def test_a_schema_tells_views_from_copies():
    view, copy = schema_of(aten.view.default), schema_of(aten.clone.default)
    assert view.returns[0].alias_info is not None
    assert not view.arguments[0].alias_info.is_write
    assert copy.returns[0].alias_info is None


def test_what_is_no_operator_has_no_schema():
    assert schema_of(len) is None
    assert schema_of(None) is None


def test_a_dispatch_mode_sees_operators_in_order():
    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    with Watch():
        torch.ones(2).add_(1).mul(2)
    assert seen == [aten.ones.default, aten.add_.Tensor, aten.mul.Tensor]


@pytest.mark.parametrize("enabled", [True, False])
def test_mkldnn_is_one_flag(enabled):
    before = mkldnn_is_enabled()
    try:
        set_mkldnn_enabled(enabled)
        assert mkldnn_is_enabled() is enabled
        assert torch.backends.mkldnn.enabled is enabled
    finally:
        set_mkldnn_enabled(before)


def test_without_mkldnn_a_recurrent_layer_uses_other_operators():
    def operators():
        seen = []

        class Watch(TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                seen.append(str(func))
                return func(*args, **(kwargs or {}))

        with torch.no_grad(), Watch():
            nn.LSTM(2, 3)(torch.zeros(4, 1, 2))
        return any("mkldnn_rnn" in name for name in seen)

    before = mkldnn_is_enabled()
    try:
        set_mkldnn_enabled(False)
        assert not operators()
    finally:
        set_mkldnn_enabled(before)


def test_an_operation_has_the_number_of_its_backward_function():
    weight = torch.ones(2, requires_grad=True)
    product = weight * 2
    number = last_sequence_number()
    assert product.grad_fn._sequence_nr() == number
    total = product.sum()
    assert total.grad_fn._sequence_nr() == last_sequence_number() > number
    with torch.no_grad():
        weight * 3
    assert total.grad_fn._sequence_nr() == last_sequence_number(), "only what is recorded counts"


def test_the_number_is_there_while_the_operator_runs():
    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(last_sequence_number())
            return func(*args, **(kwargs or {}))

    weight = torch.ones(2, requires_grad=True)
    with Watch():
        product = weight.sin()
        result = product.cos()
    assert seen == [product.grad_fn._sequence_nr(), result.grad_fn._sequence_nr()]


def test_backward_functions_are_found_with_their_numbers():
    weight = torch.ones(2, requires_grad=True)
    product = weight * 2
    both = product + product.sin()
    found = backward_functions(both.sum())
    names = sorted(function.name() for function in found)
    assert names == [
        "AddBackward0",
        "MulBackward0",
        "SinBackward0",
        "SumBackward0",
        "torch::autograd::AccumulateGrad",
    ]
    assert found[product.grad_fn] == product.grad_fn._sequence_nr()
    assert backward_functions([both, product]).keys() == backward_functions(both).keys()
    assert backward_functions([torch.ones(1)]) == {}


def test_a_backward_function_tells_before_it_runs():
    order = []
    weight = torch.ones(2, requires_grad=True)
    result = (weight * 2).sin().sum()
    for function in backward_functions(result):
        function.register_prehook(lambda gradients, f=function: order.append(f.name()))
    torch.autograd.grad(result, weight)
    assert order[:3] == ["SumBackward0", "SinBackward0", "MulBackward0"]
