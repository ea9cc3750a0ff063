"""Modules that compute their intermediates again in backward."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import Tensor, nn

from torchkiln.core import CaptureError, Options, OptionsError
from torchkiln.runtime import Program, inference_model, keep_activation, training_model
from torchkiln.runtime.capture._capture import capture


class Block(nn.Module):
    """Normalisation (buffers), dropout (random numbers), an activation that writes in place."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Tensor, *, scale: float = 1.0) -> Tensor:
        hidden = F.relu(self.norm(self.linear(x)) * scale, inplace=True)
        return self.dropout(torch.tanh(hidden) * hidden)


class Net(nn.Module):
    def __init__(self, depth: int = 3, marked: bool = False) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(depth))
        self.marked = marked

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        for block in self.blocks:
            x = x + block(x, scale=2.0)
            if self.marked:
                x = keep_activation(x)
        return x, F.mse_loss(x, y)


def batch(rows: int = 16) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(rows, 8, generator=generator), torch.randn(rows, 8, generator=generator)


def train(module: nn.Module, options: Options, calls: int = 3) -> tuple[list[Tensor], Program]:
    module = copy.deepcopy(module)
    program = training_model(module, options, torch.optim.Adam(module.parameters(), 0.01))
    torch.manual_seed(1)
    return [program(*batch())[1] for _ in range(calls)], program


def num_products(program: Program) -> int:
    """Return how many matrix products a captured step has."""
    step, _, micro_batch = program._begin(batch(), {})
    captured = capture(step, micro_batch, program._arrange(step))
    (graph,) = [entry.graph for entry in captured.entries.values()]
    return len(graph.graph.find_nodes(op="call_function", target=torch.ops.aten.addmm.default))


@pytest.mark.parametrize("marked", [False, True], ids=["plain", "marked"])
@pytest.mark.parametrize("recompute", ["auto", ["blocks.0", "blocks.2"], [""]], ids=str)
def test_recomputing_changes_no_bit(options, recompute, marked):
    torch.manual_seed(0)
    net = Net(marked=marked)
    expected, plain = train(net, options)
    got, program = train(net, options.replace(recompute=recompute))
    assert torch.equal(torch.stack(got), torch.stack(expected))
    for name, value in plain.module.state_dict().items():
        assert torch.equal(program.module.state_dict()[name], value), name


def test_running_statistics_count_each_batch_once(options):
    _, program = train(Net(), options.replace(recompute=["blocks.0"]), calls=2)
    assert program.module.blocks[0].norm.num_batches_tracked == 2


def test_recomputed_modules_appear_twice_in_the_step():
    options = Options(backend="capture", show_progress=False)
    _, plain = train(Net(), options, calls=1)
    _, program = train(Net(), options.replace(recompute=["blocks.1"]), calls=1)
    assert (num_products(plain), num_products(program)) == (3, 4)


def test_what_leads_to_a_kept_tensor_only_is_not_computed_again():
    class Chain(Net):
        def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            # Backward needs the sum that exp returns, not the product that leads to it.
            x = self.blocks[0].linear(x)
            x = keep_activation(x) if self.marked else x
            x = torch.exp(torch.sin(x))
            return x, F.mse_loss(x, y)

    options = Options(backend="capture", show_progress=False, recompute=[""])
    _, plain = train(Chain(1), options, calls=1)
    _, marked = train(Chain(1, marked=True), options, calls=1)
    assert (num_products(plain), num_products(marked)) == (2, 1)


@pytest.mark.parametrize("recompute", ["auto", [""]], ids=str)
def test_pieces_between_marks_are_recomputed_one_at_a_time(recompute):
    class Pieces(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            x = x * self.scale
            for _ in range(6):
                for _ in range(6):
                    x = torch.sin(x)
                x = keep_activation(x)
            return x, F.mse_loss(x, y)

    def saved_and_temporary_mb(chosen: object) -> float:
        module = Pieces()
        options = Options(backend="capture", show_progress=False, recompute=chosen)
        report = training_model(module, options).memory_report(*batch(2**15))
        return report.step_bytes / 2**20

    # 37 sines of 1 MB, or 6 that are kept and 6 of the piece at hand.
    assert saved_and_temporary_mb(None) > 36
    assert saved_and_temporary_mb(recompute) < 20


def test_accumulation_and_recomputation_go_together(options):
    options = options.replace(gradient_accumulation=2)
    torch.manual_seed(0)
    net = Net()
    expected, _ = train(net, options)
    got, _ = train(net, options.replace(recompute="auto"))
    assert torch.equal(torch.stack(got), torch.stack(expected))


def test_inference_ignores_the_option(options):
    net = Net().eval()
    got = inference_model(net, options.replace(recompute=["blocks.0"]))(*batch())
    torch.testing.assert_close(got[0], net(*batch())[0])


def test_an_unknown_module_is_refused_with_the_known_ones(options):
    with pytest.raises(OptionsError, match=r"no such module; its modules are 'blocks', 'blocks\.0"):
        train(Net(), options.replace(recompute=["block.0"]))


def test_a_module_that_overwrites_its_input_is_refused(options):
    class Overwriting(Net):
        def __init__(self) -> None:
            super().__init__()
            self.blocks[1] = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(8, 8))

        def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            x = self.blocks[1](self.blocks[0](x) + 1)
            return x, F.mse_loss(x, y)

    with pytest.raises(CaptureError, match=r"'blocks.1' writes to its input 0 in place"):
        train(Overwriting(), options.replace(recompute=["blocks.1"]))
    expected, _ = train(Overwriting(), options)
    got, _ = train(Overwriting(), options.replace(recompute="auto"))
    assert len(got) == len(expected)


def test_a_module_inside_a_named_one_is_recomputed_with_it():
    options = Options(backend="capture", show_progress=False)
    _, program = train(Net(), options.replace(recompute=["blocks.1.linear", "blocks.1"]), calls=1)
    assert num_products(program) == 4


def test_the_module_is_as_before_afterwards(options):
    _, program = train(Net(), options.replace(recompute="auto"), calls=1)
    assert all("forward" not in child.__dict__ for child in program.module.modules())


@pytest.mark.parametrize("value", ["always", 3, [1], {"a"}], ids=str)
def test_other_values_are_refused(value):
    with pytest.raises(OptionsError, match="recompute must be None"):
        Options(recompute=value)


def test_options_with_names_survive_being_stored():
    options = Options(recompute=["a", "b"])
    assert options.recompute == ("a", "b")
    assert Options.from_json(options.to_json()) == options
    assert Options(recompute=[]).recompute is None
