import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from torchkiln.ops import host_call, register_host_function


def test_host_function_may_use_numpy():
    register_host_function("double", lambda x: torch.from_numpy(x.numpy() * 2))
    (result,) = host_call("double", [torch.tensor([1.0, 2.0])])
    assert result.tolist() == [2.0, 4.0]


def test_inputs_are_copies():
    register_host_function("wipe", lambda x: x.zero_())
    x = torch.ones(2)
    host_call("wipe", [x])
    assert x.tolist() == [1, 1]


def test_result_sizes_are_known_without_values():
    register_host_function("pair", lambda x: (x[:1], x.long()))
    with FakeTensorMode() as mode:
        first, second = host_call("pair", [mode.from_tensor(torch.ones(4))])
    assert (first.shape, second.shape, second.dtype) == ((1,), (4,), torch.int64)


def test_unknown_function_is_named():
    with pytest.raises(LookupError, match="no host function 'nobody'"):
        host_call("nobody", [torch.ones(1)])
