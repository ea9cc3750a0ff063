"""Two stages whose weights and optimiser state come together again; compared with plain PyTorch.

As a script in two processes: `_divided_state.py NAME...` runs the cases and prints what it did.
"""

from __future__ import annotations

import copy
import io
import sys
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchkiln import Options, distributed, inference_model, training_model
from torchkiln.core import ExecutableError, OptimizerError

ACCUMULATION = 4


class Net(nn.Module):
    def __init__(self, ends_with_weights: bool = True) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.second: nn.Module = nn.Linear(6, 3) if ends_with_weights else nn.Tanh()

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.second(torch.tanh(self.first(x))), y)


def adam(module: nn.Module, rate: float = 0.01) -> torch.optim.Optimizer:
    return torch.optim.Adam(module.parameters(), lr=rate)


def options(**changes: Any) -> Options:
    made = Options(
        backend="capture",
        gradient_accumulation=ACCUMULATION,
        pipeline=["first", "second"],
        show_progress=False,
        random_seed=0,
    )
    return distributed.start().options(made.replace(**changes))


def batches(count: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(16, 6, generator=generator), torch.randint(0, 3, (16,), generator=generator))
        for _ in range(count)
    ]


def train_plainly(
    module: nn.Module, optimizer: torch.optim.Optimizer, some: Sequence[tuple[Tensor, Tensor]]
) -> None:
    for batch in some:
        optimizer.zero_grad()
        for part in zip(*(tensor.chunk(ACCUMULATION) for tensor in batch), strict=True):
            (module(*part) / ACCUMULATION).backward()
        optimizer.step()


def compare(
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    plain: nn.Module,
    plain_optimizer: torch.optim.Optimizer,
) -> None:
    torch.testing.assert_close(module.state_dict(), plain.state_dict(), rtol=0, atol=1e-6)
    torch.testing.assert_close(
        optimizer.state_dict()["state"], plain_optimizer.state_dict()["state"], rtol=0, atol=1e-6
    )


def another_optimizer() -> None:
    """State moves to it, and comes from all stages."""
    module = Net()
    plain = copy.deepcopy(module)
    optimizer, plain_optimizer = adam(module), adam(plain)
    program = training_model(module, options(), optimizer)
    some = batches(4)
    program(*some[0])
    other = adam(module, 0.005)
    program.set_optimizer(other)
    program(*some[1])
    program.gather_weights()
    train_plainly(plain, plain_optimizer, some[:1])
    plain_optimizer.param_groups[0]["lr"] = 0.005
    train_plainly(plain, plain_optimizer, some[1:2])
    compare(module, other, plain, plain_optimizer)
    program(*some[2])
    program.destroy()
    program(*some[3])
    program.gather_weights()
    train_plainly(plain, plain_optimizer, some[2:])
    compare(module, other, plain, plain_optimizer)


def inference_beside_training() -> None:
    """A program for inference of the same division changes nothing about the state."""
    module = Net()
    plain = copy.deepcopy(module)
    optimizer, plain_optimizer = adam(module), adam(plain)
    training = training_model(module, options(), optimizer)
    inference = inference_model(
        module, options(gradient_accumulation=1, device_iterations=ACCUMULATION)
    )
    some = batches(5)
    for number, batch in enumerate(some):
        training(*batch)
        if number:
            inference(*batch)
            own = sum(len(state) > 0 for state in optimizer.state.values())
            assert own == 2 or number == 1, "state of the other stage is here"
    inference.destroy()
    train_plainly(plain, plain_optimizer, some)
    compare(module, optimizer, plain, plain_optimizer)


def a_stage_without_weights() -> None:
    """One stage has all of them, and takes part when others gather."""
    module = Net(ends_with_weights=False)
    plain = copy.deepcopy(module)
    optimizer, plain_optimizer = adam(module), adam(plain)
    program = training_model(module, options(), optimizer)
    x, y = batches(1)[0]
    program(x, y)
    program.gather_weights()
    train_plainly(plain, plain_optimizer, [(x, y)])
    compare(module, optimizer, plain, plain_optimizer)


def copies_of_a_part() -> None:
    """Neither the optimiser's state nor the module goes into a file while it is divided."""
    module = Net()
    optimizer = adam(module)
    program = training_model(module, options(), optimizer)
    program(*batches(1)[0])
    with pytest.raises(OptimizerError, match=r"its own stage alone; call program\.gather_weights"):
        optimizer.state_dict()
    with pytest.raises(ExecutableError, match=r"program\.gather_weights\(\) on all ranks"):
        torch.save(module, io.BytesIO())
    program.gather_weights()
    assert len(optimizer.state_dict()["state"]) == 4
    torch.save(module, io.BytesIO())


CASES = {
    case.__name__: case
    for case in (
        another_optimizer,
        inference_beside_training,
        a_stage_without_weights,
        copies_of_a_part,
    )
}


def main() -> None:
    distributed.start()
    for name in sys.argv[1:]:
        torch.manual_seed(0)
        CASES[name]()
        print(f"done: {name}", flush=True)


if __name__ == "__main__":
    main()
