"""Half-precision weights: moments and sums in float32, the update computed in float32."""

from __future__ import annotations

import pytest
import torch
from _half import HALVES, OPTIMIZERS, REFERENCES, FloatMoments, batch, regression

from torchkiln.core import Options
from torchkiln.runtime import training_model

STEPS = 60
BACKENDS = ["eager", "capture", pytest.param("inductor", marks=pytest.mark.inductor)]
# Units in the last place of a weight. The same gradients and float32 rules that differ in the
# order of additions only: now and then a weight rounds the other way.
ULPS = 4

pytestmark = pytest.mark.filterwarnings("ignore:this CPU has no")


def assert_close(got, expected, ulps=ULPS):
    for (name, one), other in zip(got.named_parameters(), expected.parameters(), strict=True):
        scale = other.abs().max().float() * torch.finfo(one.dtype).eps
        difference = (one.float() - other.float()).abs().max()
        assert difference <= ulps * scale, f"{name} differs by {float(difference / scale)} ulps"


def train(name, dtype, backend, **options):
    module = regression(dtype)
    reference = FloatMoments(module, REFERENCES.get(name, OPTIMIZERS[name]))
    optimizer = OPTIMIZERS[name](module.parameters())
    program = training_model(
        module, Options(backend=backend, show_progress=False, **options), optimizer
    )
    losses = []
    for step in range(STEPS):
        losses.append((program(*batch(dtype, step)).float(), reference.step(*batch(dtype, step))))
    return module, optimizer, reference, losses


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_sixty_steps_equal_plain_torch_with_float32_moments(name, dtype, options):
    module, optimizer, reference, losses = train(name, HALVES[dtype], options.backend.value)
    assert_close(module, reference.module)
    for state in optimizer.state.values():
        assert all(value.dtype == torch.float32 for value in state.values())
