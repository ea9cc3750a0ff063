"""The memory of a step, told before it runs."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import Tensor, nn

from torchkiln.core import Options, ShapeChanged
from torchkiln.runtime import inference_model, training_model

WIDTH = 64
ROWS = 1000
ACTIVATION_BYTES = ROWS * WIDTH * 4
WEIGHT_BYTES = WIDTH * WIDTH * 4


class Chain(nn.Module):
    """Products with sines between them: backward of either reads what it was given."""

    def __init__(self, depth: int = 5) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.sin(layer(x))
        return F.mse_loss(x, torch.zeros_like(x))


def report(module: nn.Module, *example: Tensor, **changes: object):
    options = Options(backend="capture", show_progress=False).replace(**changes)
    program = training_model(module, options, torch.optim.Adam(module.parameters()))
    return program.memory_report(*example)


def test_what_stays_between_steps_is_counted_exactly():
    found = report(Chain(5), torch.randn(ROWS, WIDTH))
    assert found.parameter_bytes == 5 * WEIGHT_BYTES
    assert found.optimizer_bytes == 2 * found.parameter_bytes
    assert found.batch_bytes == ACTIVATION_BYTES
    assert found.total_bytes == sum(found.parts.values())


def test_activations_that_wait_for_backward_are_counted_exactly():
    # Five products, whose sines' backward reads them, and four results that products read; the
    # last result and its target are read by the backward of the loss.
    found = report(Chain(5), torch.randn(ROWS, WIDTH))
    assert found.peak_phase == "backward"
    assert found.saved_bytes // ACTIVATION_BYTES == 11


def test_activations_belong_to_their_modules():
    found = report(Chain(5), torch.randn(ROWS, WIDTH))
    assert found.modules["layers.1"].saved_bytes == ACTIVATION_BYTES
    assert found.modules["layers.1"].parameter_bytes == WEIGHT_BYTES
    assert found.modules["layers.1"].optimizer_bytes == 2 * WEIGHT_BYTES
    assert sum(m.saved_bytes for m in found.modules.values()) == found.saved_bytes


def test_twice_the_rows_need_twice_the_activations():
    once = report(Chain(), torch.randn(ROWS, WIDTH))
    twice = report(Chain(), torch.randn(2 * ROWS, WIDTH))
    assert twice.saved_bytes == pytest.approx(2 * once.saved_bytes, rel=0.01)
    assert twice.parameter_bytes == once.parameter_bytes


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(*(nn.Tanh() for _ in range(6))) for _ in range(6))
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        x = x * self.scale
        for block in self.blocks:
            x = block(x)
        return F.mse_loss(x, torch.zeros_like(x))


def test_recomputation_saves_about_what_the_report_without_it_foretold():
    plain = report(Blocks(), torch.randn(ROWS, WIDTH))
    recomputed = report(Blocks(), torch.randn(ROWS, WIDTH), recompute="auto")
    assert recomputed.recomputed == tuple(f"blocks.{index}" for index in range(6))
    assert recomputed.total_bytes < 0.5 * plain.total_bytes
    foretold = plain.total_bytes - plain.recomputable_bytes
    assert foretold == pytest.approx(recomputed.total_bytes, rel=0.15)


def test_a_step_that_no_machine_could_hold_can_be_planned():
    class Huge(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(()))

        def forward(self, x: Tensor) -> Tensor:
            return torch.sin(x.expand(2**20, 2**20) * self.weight).mean(dim=0).sum(dim=0)

    module = Huge()
    options = Options(backend="capture", show_progress=False)
    found = inference_model(module, options).memory_report(torch.zeros(1))
    assert found.total_bytes >= 2 * 4 * 2**40
    assert not found.training


def test_accumulation_adds_sums_of_gradients():
    plain = report(Chain(), torch.randn(ROWS, WIDTH))
    sums = report(Chain(), torch.randn(2 * ROWS, WIDTH), gradient_accumulation=2)
    assert sums.gradient_bytes >= sums.parameter_bytes
    assert sums.micro_batch_size == plain.micro_batch_size == ROWS


def test_a_report_leaves_the_program_as_it_was():
    module = Chain(2)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    program = training_model(module, Options(backend="capture", show_progress=False))
    program.memory_report(torch.randn(8, WIDTH))
    assert not program.is_compiled
    program(torch.randn(4, WIDTH))
    program.memory_report(torch.randn(8, WIDTH))
    with pytest.raises(ShapeChanged):
        program(torch.randn(8, WIDTH))
    assert before.keys() == module.state_dict().keys()


def test_a_compiled_step_is_judged_by_its_own_plan_and_another_one_anew(monkeypatch):
    from torchkiln.runtime import _inspection

    program = training_model(Chain(2), Options(show_progress=False))
    first = program.memory_report(torch.randn(ROWS, WIDTH))
    program.compile(torch.randn(ROWS, WIDTH))
    planned = []
    plan_entries = _inspection.plan_entries
    monkeypatch.setattr(
        _inspection, "plan_entries", lambda *args: planned.append(args) or plan_entries(*args)
    )
    again = program.memory_report(torch.randn(ROWS, WIDTH))
    assert not planned
    assert again.total_bytes == program.view(torch.randn(ROWS, WIDTH)).memory.total_bytes
    assert again.total_bytes == pytest.approx(first.total_bytes, rel=0.01)
    assert program.memory_report(torch.randn(2 * ROWS, WIDTH)).total_bytes > again.total_bytes
    assert len(planned) == 1


def test_a_report_prints_its_parts():
    text = str(report(Chain(), torch.randn(ROWS, WIDTH)))
    assert "MB at the peak, in backward" in text
    assert "activations kept for backward" in text
