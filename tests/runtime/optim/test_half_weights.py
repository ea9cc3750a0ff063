"""Half-precision weights: moments and sums in float32, the update computed in float32."""

from __future__ import annotations

import pytest
import torch
from _half import HALVES, OPTIMIZERS, REFERENCES, FloatMoments, Regression, batch, regression
from torch import nn

from torchkiln.core import OptimizerError, Options
from torchkiln.runtime import identity_loss, training_model
from torchkiln.runtime.compile._builder import _fast_key

STEPS = 60
# Units in the last place of a weight. The same gradients and float32 rules that differ in the
# order of additions only: now and then a weight rounds the other way.
ULPS = 4
NATIVE_ULPS = 16

pytestmark = pytest.mark.filterwarnings("ignore:this CPU has no")


def assert_close(got, expected, ulps=ULPS):
    for (name, one), other in zip(got.named_parameters(), expected.parameters(), strict=True):
        scale = other.abs().max().float() * torch.finfo(one.dtype).eps
        difference = (one.float() - other.float()).abs().max()
        assert difference <= ulps * scale, f"{name} differs by {float(difference / scale)} ulps"


def train(name, dtype, backend):
    module = regression(dtype)
    reference = FloatMoments(module, REFERENCES.get(name, OPTIMIZERS[name]))
    optimizer = OPTIMIZERS[name](module.parameters())
    program = training_model(module, Options(backend=backend, show_progress=False), optimizer)
    for step in range(STEPS):
        program(*batch(dtype, step))
        reference.step(*batch(dtype, step))
    return module, optimizer, reference


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_sixty_steps_equal_plain_torch_with_float32_moments(name, dtype, options):
    module, optimizer, reference = train(name, HALVES[dtype], options.backend.value)
    assert_close(module, reference.module)
    for state in optimizer.state.values():
        assert all(value.dtype == torch.float32 for value in state.values())


@pytest.mark.inductor
@pytest.mark.parametrize(
    ("name", "dtype"),
    [("adamw", "float16"), pytest.param("momentum", "bfloat16", marks=pytest.mark.slow)],
)
def test_native_code_keeps_float32_moments(name, dtype):
    module, optimizer, reference = train(name, HALVES[dtype], "inductor")
    # Its forward rounds less often than eager's, so that gradients differ by their last bits.
    assert_close(module, reference.module, ulps=NATIVE_ULPS)
    for state in optimizer.state.values():
        assert all(value.dtype == torch.float32 for value in state.values())


def test_a_small_network_in_half_learns(options):
    torch.manual_seed(1)
    module = Regression()
    module.layers = nn.Sequential(
        nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1)
    )
    module.half()
    program = training_model(module, options, torch.optim.AdamW(module.parameters(), lr=0.01))
    losses = [float(program(*batch(torch.float16, rows=64))) for _ in range(2 * STEPS)]
    # From 0.53 to 0.0004; half moments stop at 0.09.
    assert losses[-1] < 0.005


class Product(nn.Module):
    """A gradient that is the input itself."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, dtype=dtype))

    def forward(self, x):
        return identity_loss(self.weight * x, reduction="sum")


def test_gradient_sums_keep_digits_that_half_loses(options):
    module = Product(torch.float16)
    options = options.replace(gradient_accumulation=5, reduction="sum")
    program = training_model(module, options, torch.optim.SGD(module.parameters(), lr=0.25))
    # In float16, 2048 + 1 is 2048, and twice 40000 is infinite.
    program(torch.tensor([2048.0, 1.0, 1.0, 1.0, 1.0], dtype=torch.float16))
    assert module.weight.item() == -513.0
    module.weight.data.zero_()
    program(torch.tensor([40000.0, 40000.0, -40000.0, -40000.0, 0.0], dtype=torch.float16))
    assert module.weight.item() == 0.0


def test_loss_scaling_is_taken_back_in_float32(options):
    module = Product(torch.float16)
    optimizer = torch.optim.SGD(module.parameters(), lr=4096.0)
    optimizer.loss_scaling = 1024.0
    program = training_model(module, options, optimizer)
    # 2**-26 is no float16; scaled by 2**10 it is, and the update of 2**-14 is again.
    program(torch.tensor([2.0**-26]))
    assert module.weight.item() == -(2.0**-14)


def test_clipping_is_computed_in_float32(options):
    module = Product(torch.float16)
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    optimizer.max_grad_norm = 1e-3
    training_model(module, options, optimizer)(torch.tensor([3.0], dtype=torch.float16))
    assert module.weight.item() == torch.tensor(-1e-3 * 3 / (3 + 1e-6)).half().item()


def test_predicted_memory_counts_float32_state(options):
    sizes = {}
    for dtype in (torch.float16, torch.float32):
        module = regression(dtype)
        split = options.replace(gradient_accumulation=2)
        program = training_model(module, split, torch.optim.Adam(module.parameters()))
        report = program.memory_report(*batch(dtype, rows=32))
        sizes[dtype] = report.optimizer_bytes, report.gradient_sum_bytes
    assert sizes[torch.float16] == sizes[torch.float32]
    assert min(sizes[torch.float16]) > 0


def test_the_cache_tells_dtypes_of_state_apart():
    keys = set()
    for dtype in (torch.float32, torch.float16):
        module = regression(torch.float16)
        optimizer = torch.optim.Adam(module.parameters())
        optimizer.state_dtypes = {"exp_avg": dtype}
        program = training_model(module, Options(show_progress=False), optimizer)
        step, _, _ = program._begin(batch(torch.float16), {})
        keys.add(_fast_key(step, program._arrange(step), torch.device("cpu")))
    assert None not in keys
    assert len(keys) == 2


def test_state_dtypes_that_hold_no_fractions_are_refused(options):
    module = regression(torch.float16)
    optimizer = torch.optim.Adam(module.parameters())
    optimizer.state_dtypes = {"exp_avg": torch.int8}
    with pytest.raises(OptimizerError, match=r"state_dtypes\['exp_avg'\] is torch.int8"):
        training_model(module, options, optimizer)
