"""Run by `test_compiler_proof.py` in a process of its own: train from the cache alone.

Prints the losses and the counts of compiles and captures as JSON. The model lives here, so that
both processes import it from the same file.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import Tensor, nn

from torchkiln.core import Options
from torchkiln.runtime import Program, training_model


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 8, bias=False), nn.BatchNorm1d(8), nn.Dropout(0.2))
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        out = self.head(self.body(x).relu())
        return {"out": out, "loss": F.cross_entropy(out, y)}


def make_program(backend: str, cache_dir: Path) -> Program:
    torch.manual_seed(4)
    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    options = Options(backend=backend, cache_dir=cache_dir, show_progress=False)
    return training_model(model, options, optimizer)


def batches(count: int) -> list[tuple[Tensor, Tensor]]:
    rng = torch.Generator().manual_seed(8)
    return [
        (torch.randn(8, 5, generator=rng), torch.randint(0, 3, (8,), generator=rng))
        for _ in range(count)
    ]


def forbid_python(program: Program) -> None:
    """From here on, running forward or the optimiser's step as Python is an error."""

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("Python code of the model or optimiser was executed")

    for module in program.module.modules():
        module.forward = refuse
    program.optimizer.step = refuse


def train(program: Program, count: int) -> list[float]:
    torch.manual_seed(6)
    return [program(*batch)["loss"].item() for batch in batches(count)]


def main() -> None:
    torch.set_num_threads(2)
    program = make_program("inductor", Path(sys.argv[1]))
    # The fast key reads forward's code, so the class stays whole; running it is what is forbidden.
    calls: list[int] = []
    original = Model.forward
    sys.setprofile(
        lambda frame, event, arg: calls.append(1) if frame.f_code is original.__code__ else None
    )
    losses = train(program, 6)
    sys.setprofile(None)
    print(
        json.dumps(
            {
                "losses": losses,
                "compiles": program.num_compiles,
                "captures": program.num_captures,
                "forward_calls": len(calls),
                "inductor_imported": "torch._inductor.compile_fx" in sys.modules,
            }
        )
    )
