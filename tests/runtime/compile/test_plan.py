"""The host part of a program as values: round trips, memory over calls, and reading Inductor's."""

import pytest
import torch

from torchkiln import Options, identity_loss, training_model
from torchkiln.runtime.compile._plan import (
    Plan,
    PlannedBlock,
    PlannedCall,
    PlannedPart,
    PlannedTensor,
    short_dtype,
)


def call(kernel="mm", is_generated=False, scratch=0, nodes=(1,)):
    tensor = PlannedTensor("f32[2, 3]", 24)
    parts = (PlannedPart(6, nodes),)
    return PlannedCall(kernel, is_generated, parts, (tensor, tensor), (tensor,), scratch)


def block(size, born, last, last_use=None):
    return PlannedBlock(size, "f32[2]", born, last if last_use is None else last_use, last, (1, 2))


PLAN = Plan(
    (call(nodes=(1, 2)), call('cpp_fused_"quoted"_0', True), call(scratch=100)),
    (block(8, 0, 2), block(16, 1, 1), block(4, 2, 2, last_use=1)),
    "0123456789abcdef",
)


@pytest.mark.parametrize("plan", [PLAN, Plan((), (), "")], ids=["full", "empty"])
def test_a_plan_is_the_same_after_a_round_trip(plan):
    assert Plan.from_json(plan.to_json()) == plan


def test_memory_over_the_calls():
    assert PLAN.live_bytes() == [8, 24, 12]
    assert PLAN.peak_call() == 2  # 12 and what the call needs for itself
    without_scratch = Plan((call(), call(), call()), PLAN.blocks, "")
    assert without_scratch.peak_call() == 1
    assert Plan((), (), "").peak_call() is None


def test_a_call_names_the_nodes_of_all_its_parts():
    two = PlannedCall("k", True, (PlannedPart(1, (3, 1)), PlannedPart(2, (1,))), (), (), 0)
    assert two.nodes == [3, 1, 1]


@pytest.mark.parametrize(
    ("dtype", "letters"),
    [
        (torch.float32, "f32"),
        (torch.bfloat16, "bf16"),
        (torch.int64, "i64"),
        (torch.uint8, "u8"),
        (torch.bool, "b8"),
        (torch.complex64, "c64"),
    ],
)
def test_dtypes_in_a_few_letters(dtype, letters):
    assert short_dtype(dtype) == letters


class Convolved(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Conv1d(3, 4, 3)
        self.volume = torch.nn.Conv3d(3, 4, 3)

    def forward(self, line, volume):
        results = self.line(line), self.volume(volume)
        return identity_loss(sum(result.square().mean() for result in results), reduction="mean")


def test_convolutions_of_lines_and_volumes_have_a_plan_too():
    torch.manual_seed(0)
    module = Convolved()
    inputs = torch.randn(2, 3, 9), torch.randn(2, 3, 5, 6, 7)
    expected = module(*inputs).item()
    program = training_model(
        module, Options(show_progress=False), torch.optim.SGD(module.parameters(), lr=0.1)
    )
    assert program(*inputs).item() == pytest.approx(expected, rel=1e-5)
    kernels = [c.kernel for c in program.view(*inputs).entries["step"].timeline.plan.calls]
    assert any("convolution" in kernel for kernel in kernels)
