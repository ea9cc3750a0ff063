"""BatchNorm in half precision whose running statistics stay in float32."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from _half import HALVES
from torch import nn

from torchkiln.core import Options
from torchkiln.runtime import inference_model, training_model

CASES = [
    *((dtype, backend) for dtype in HALVES for backend in ("eager", "capture")),
    pytest.param("float16", "inductor", marks=pytest.mark.inductor),
    pytest.param("bfloat16", "inductor", marks=[pytest.mark.inductor, pytest.mark.slow]),
]

pytestmark = pytest.mark.filterwarnings("ignore:this CPU has no")


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 8)
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x, y):
        out = self.norm(self.layer(x))
        return out, F.mse_loss(out, y)


class Widened(Normed):
    """The same in plain torch, whose kernels want weights and statistics in one dtype."""

    def forward(self, x, y):
        norm = self.norm
        norm.num_batches_tracked += int(norm.training)
        out = F.batch_norm(
            self.layer(x),
            norm.running_mean,
            norm.running_var,
            norm.weight.float(),
            norm.bias.float(),
            norm.training,
            norm.momentum,
            norm.eps,
        )
        return out, F.mse_loss(out, y)


def mixed(dtype):
    torch.manual_seed(0)
    module = Normed()
    nn.init.uniform_(module.norm.weight)
    nn.init.uniform_(module.norm.bias)
    module.to(dtype)
    module.norm.running_mean = module.norm.running_mean.float()
    module.norm.running_var = module.norm.running_var.float()
    twin = copy.deepcopy(module)
    twin.__class__ = Widened
    return module, twin


def batch(dtype):
    rng = torch.Generator().manual_seed(2)
    return torch.randn(16, 6, generator=rng).to(dtype), torch.randn(16, 8, generator=rng).to(dtype)


@pytest.mark.parametrize(("dtype", "backend"), CASES)
def test_training_in_half_with_float32_statistics_equals_torch(dtype, backend):
    dtype = HALVES[dtype]
    module, twin = mixed(dtype)
    options = Options(backend=backend, show_progress=False)
    program = training_model(module, options, torch.optim.SGD(module.parameters(), lr=0.1))
    reference = torch.optim.SGD(twin.parameters(), lr=0.1)
    # A few roundings of the half type in each step.
    tolerance = 8 * torch.finfo(dtype).eps
    for _ in range(4):
        out, loss = program(*batch(dtype))
        reference.zero_grad()
        expected, expected_loss = twin(*batch(dtype))
        expected_loss.backward()
        reference.step()
        assert out.dtype == dtype
        torch.testing.assert_close(out, expected.detach(), rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(loss, expected_loss.detach(), rtol=tolerance, atol=tolerance)
    assert module.norm.running_mean.dtype == module.norm.running_var.dtype == torch.float32
    assert module.norm.weight.dtype == dtype
    torch.testing.assert_close(
        module.state_dict(), twin.state_dict(), rtol=tolerance, atol=tolerance
    )


@pytest.mark.parametrize(("dtype", "backend"), CASES)
def test_inference_in_half_with_float32_statistics_equals_torch(dtype, backend):
    dtype = HALVES[dtype]
    module, twin = mixed(dtype)
    for net in (module.eval(), twin.eval()):
        net.norm.running_mean.fill_(0.3)
        net.norm.running_var.fill_(2.0)
    out, _ = inference_model(module, Options(backend=backend, show_progress=False))(*batch(dtype))
    tolerance = 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(out, twin(*batch(dtype))[0], rtol=tolerance, atol=tolerance)
    assert torch.equal(module.norm.running_mean, torch.full((8,), 0.3))
