"""Which modules `recompute="auto"` chooses."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import Tensor, nn

from torchkiln.core import Options
from torchkiln.runtime import keep_activation, training_model
from torchkiln.runtime.capture._capture import recomputed_modules


class Stack(nn.Module):
    """Equal blocks with much inside and little between them."""

    def __init__(self, block: type[nn.Module], depth: int = 4) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(block() for _ in range(depth))
        self.head = nn.Linear(8, 1)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return F.mse_loss(self.head(x), y)


class Wide(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 8)
        )


class Marked(Wide):
    def forward(self, input: Tensor) -> Tensor:
        return keep_activation(super().forward(input))


class Overwriting(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.ReLU(inplace=True), Wide())


def chosen(module: nn.Module) -> tuple[str, ...]:
    program = training_model(module, Options(backend="capture", recompute="auto"))
    step, _, batch = program._begin((torch.randn(32, 8), torch.randn(32, 1)), {})
    return recomputed_modules(step, batch)


def test_blocks_are_chosen_and_not_what_is_inside_or_around_them():
    assert chosen(Stack(Wide)) == ("blocks.0", "blocks.1", "blocks.2", "blocks.3")


def test_a_module_that_keeps_only_its_input_is_not_worth_it():
    assert chosen(Stack(lambda: nn.Linear(8, 8))) == ()


def test_a_module_that_overwrites_its_input_is_left_out_but_not_its_parts():
    assert chosen(Stack(Overwriting)) == tuple(f"blocks.{index}.1" for index in range(4))


def test_marks_replace_the_choice():
    assert chosen(Stack(Marked)) == ("",)
