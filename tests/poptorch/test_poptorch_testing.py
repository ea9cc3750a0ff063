"""`poptorch.testing`."""

import torch

import poptorch
import poptorch.testing


def test_allclose_is_recursive_and_never_raises():
    a = [torch.ones(2), (torch.zeros(1), torch.zeros(1))]
    b = [torch.ones(2), (torch.zeros(1), torch.full((1,), 1e-9))]
    assert poptorch.testing.allclose(a, b)
    assert not poptorch.testing.allclose(a, b[:1])
    assert not poptorch.testing.allclose(a, tuple(b))
    assert not poptorch.testing.allclose(torch.ones(2), torch.ones(3))
    assert not poptorch.testing.allclose(torch.ones(2), torch.zeros(2))
