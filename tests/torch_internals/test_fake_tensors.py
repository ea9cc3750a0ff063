"""Tensors without values, as Torchkiln relies on them."""

import pytest
import torch

from torchkiln.torch_internals._fake_tensors import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    UnsupportedOperatorException,
    fake_mode,
    fake_mode_with_sizes,
    unset_fake_temporarily,
)


def test_stand_ins_keep_form_and_have_no_values():
    real = torch.zeros(2, 3, dtype=torch.float64).t()
    fake = fake_mode().from_tensor(real)
    assert isinstance(fake, FakeTensor)
    assert (fake.shape, fake.stride(), fake.dtype) == (real.shape, real.stride(), real.dtype)
    assert fake.device == real.device


def test_sizes_that_depend_on_values_raise_and_name_the_operator():
    mode = fake_mode()
    x = mode.from_tensor(torch.zeros(3))
    with mode, pytest.raises(DynamicOutputShapeException) as raised:
        torch.nonzero(x)
    assert raised.value.func is torch.ops.aten.nonzero.default


def test_values_that_python_reads_raise_and_name_the_operator():
    mode = fake_mode()
    x = mode.from_tensor(torch.zeros(()))
    with mode, pytest.raises(DataDependentOutputException) as raised:
        x.item()
    assert raised.value.func is torch.ops.aten._local_scalar_dense.default


def test_operators_without_a_form_for_shapes_raise_and_name_themselves():
    with torch.library._scoped_library("torchkiln_test", "DEF") as library:
        library.define("only_real(Tensor x) -> Tensor")
        library.impl("only_real", lambda x: x.clone(), "CPU")
        mode = fake_mode()
        x = mode.from_tensor(torch.zeros(2))
        with mode, pytest.raises(UnsupportedOperatorException) as raised:
            torch.ops.torchkiln_test.only_real(x)
        assert "only_real" in str(raised.value.func)


@pytest.mark.parametrize("method", ["numpy", "tolist"])
def test_the_words_for_values_that_leave_torch(method):
    mode = fake_mode()
    x = mode.from_tensor(torch.zeros(3))
    with mode, pytest.raises(RuntimeError) as raised:
        getattr(x, method)()
    words = f".{method}() is not supported for tensor subclasses"
    assert words in str(raised.value) or isinstance(raised.value, DataDependentOutputException)


def test_real_tensors_are_let_in():
    mode = fake_mode()
    x = mode.from_tensor(torch.zeros(3))
    with mode:
        assert isinstance(x + torch.nn.Parameter(torch.ones(3)), FakeTensor)


def test_a_mode_for_inductor_has_sizes_of_its_own():
    mode = fake_mode_with_sizes()
    assert mode.shape_env is not None
    with mode:
        assert isinstance(torch.empty_strided((2, 3), (3, 1)), FakeTensor)


def test_real_values_exist_while_the_mode_is_unset():
    with fake_mode():
        assert isinstance(torch.zeros(2), FakeTensor)
        with unset_fake_temporarily():
            assert torch.ones(2).sum().item() == 2.0
        assert isinstance(torch.zeros(2), FakeTensor)
