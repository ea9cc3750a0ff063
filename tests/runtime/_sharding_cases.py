"""Training runs whose optimiser is divided among processes, beside the same with whole state.

As a script: `_sharding_cases.py FOLDER NAME...` trains the cases twice in this world, and leaves
what happened in FOLDER.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import Tensor, nn

from torchkiln import LAMB, Options, distributed, training_model

CAPTURE = {"backend": "capture"}
NATIVE = {"backend": "inductor"}
NUM_CALLS = 6


class Regression(nn.Module):
    """Odd sizes everywhere: parts end within parameters, and vector loops have tails."""

    def __init__(self) -> None:
        super().__init__()
        self.images = nn.Conv2d(3, 5, 3, bias=False).to(memory_format=torch.channels_last)
        self.first = nn.Linear(5, 37)
        self.scale = nn.Parameter(torch.ones(()))
        self.second = nn.Linear(37, 11)
        self.unused = nn.Linear(3, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        hidden = self.images(x).mean((2, 3))
        return F.mse_loss(self.second(torch.tanh(self.first(hidden)) * self.scale), y)


def in_two_groups(module: nn.Module) -> list[dict[str, Any]]:
    weights = [p for p in module.parameters() if p.dim() > 1]
    others = [p for p in module.parameters() if p.dim() <= 1]
    return [{"params": weights, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]


def sgd(module: nn.Module) -> torch.optim.Optimizer:
    groups = in_two_groups(module)
    return torch.optim.SGD(groups, lr=0.3, momentum=0.9, dampening=0.1)


def plain_sgd(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=0.3)


def adam(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(in_two_groups(module), lr=0.01, amsgrad=True)


def adamw(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(in_two_groups(module), lr=0.01)


def rmsprop(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.RMSprop(in_two_groups(module), lr=0.01, momentum=0.5, centered=True)


def lamb(module: nn.Module) -> torch.optim.Optimizer:
    return LAMB(in_two_groups(module), lr=0.02)


def clipped(module: nn.Module) -> torch.optim.Optimizer:
    """Adam that limits the norm of gradients, and scales the loss by no power of two."""
    optimizer = adam(module)
    optimizer.max_grad_norm, optimizer.loss_scaling = 0.05, 10.0
    return optimizer


def clipped_lamb(module: nn.Module) -> torch.optim.Optimizer:
    optimizer = lamb(module)
    optimizer.max_grad_norm = 0.05
    return optimizer


def half_state(module: nn.Module) -> torch.optim.Optimizer:
    optimizer = adamw(module)
    optimizer.state_dtypes = {"exp_avg": torch.bfloat16, "exp_avg_sq": torch.bfloat16}
    return optimizer


def half_sums(module: nn.Module) -> torch.optim.Optimizer:
    optimizer = clipped(module)
    optimizer.state_dtypes = {"grad": torch.bfloat16}
    return optimizer


@dataclass(frozen=True)
class Case:
    """A training run.

    Args:
        optimizer: Makes the optimiser.
        options: Of each process.
        dtype: Of the parameters.
        tolerance: Largest difference from the weights of the same run with whole state; 0: the same
            bits. Norms are added up in another order than without parts.
    """

    optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    options: dict[str, Any] = field(default_factory=lambda: CAPTURE)
    dtype: torch.dtype = torch.float32
    tolerance: float = 0.0


CASES = {
    "sgd": Case(sgd),
    "plain sgd": Case(plain_sgd),
    "adam": Case(adam),
    "adamw": Case(adamw),
    "rmsprop": Case(rmsprop),
    "native adamw": Case(adamw, NATIVE),
    "long native sgd": Case(sgd, NATIVE),
    "long native adam": Case(adam, NATIVE),
    "long native rmsprop": Case(rmsprop, NATIVE),
    "long native clipped": Case(clipped, NATIVE, tolerance=1e-6),
    "long native lamb": Case(lamb, NATIVE, tolerance=1e-6),
    "sum": Case(adam, {**CAPTURE, "reduction": "sum"}),
    "fastest": Case(adam, {**CAPTURE, "reduction_order": "fastest"}),
    "several": Case(
        adamw,
        {**CAPTURE, "gradient_accumulation": 2, "device_iterations": 3, "replication_factor": 2},
    ),
    "float64": Case(adam, dtype=torch.float64),
    "bfloat16": Case(adamw, dtype=torch.bfloat16),
    "half state": Case(half_state),
    "half sums": Case(half_sums, tolerance=1e-6),
    "clipped": Case(clipped, tolerance=1e-6),
    "lamb": Case(lamb, tolerance=1e-6),
    "clipped lamb": Case(clipped_lamb, tolerance=1e-6),
    "lamb in bfloat16": Case(lamb, dtype=torch.bfloat16, tolerance=0.02),
}


def program_of(case: Case, *, is_divided: bool, **changes: Any) -> Any:
    """Return a program of this rank, whose weights are those of all."""
    world = distributed.start()
    options = Options(**{**case.options, "show_progress": False, **changes})
    torch.manual_seed(3)
    module = Regression().to(case.dtype)
    made = world.options(options.replace(shard_optimizer=is_divided))
    return training_model(module, made, case.optimizer(module))


def batches_of(
    program: Any, dtype: torch.dtype = torch.float32, rank: int | None = None
) -> list[list[Tensor]]:
    """Return the arguments of one call after the other, for this rank.

    Args:
        program: What is called.
        dtype: Of the arguments.
        rank: Return what a process gets for this rank, in whose place it works.
    """
    seed = program.options.process_id if rank is None else rank
    generator = torch.Generator().manual_seed(seed)
    size = 4 * (program.options.combined_factor if rank is None else 1)
    batches = []
    for _ in range(NUM_CALLS):
        x = torch.randn(size, 3, 5, 5, generator=generator).to(dtype)
        batches.append([x, x.flatten(1)[:, :11].sin()])
    return batches


def weights_of(program: Any) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in program.module.parameters()]


def train(case: Case, *, is_divided: bool) -> dict[str, Any]:
    """Train a case in this world, and return what happened."""
    program = program_of(case, is_divided=is_divided)
    program.exchange_notes(1, lambda outputs: [float(outputs[0])])
    weights, losses = [], []
    for batch in batches_of(program, case.dtype):
        program(*batch)
        weights.append(weights_of(program))
        losses.append(program.notes.clone())
    program.gather_optimizer_state()
    return {
        "weights": weights,
        "losses": losses,
        "state": program.optimizer.state_dict(),
        "compiles": program.num_compiles,
        "dtypes": program.state_dtypes(),
    }


def main() -> None:
    folder, *names = sys.argv[1:]
    rank = distributed.start().rank
    for name in names:
        both = {
            kind: train(CASES[name], is_divided=kind == "divided") for kind in ("whole", "divided")
        }
        torch.save(both, Path(folder, f"{name}-{rank}.pt"))


if __name__ == "__main__":
    main()
