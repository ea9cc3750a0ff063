"""Training runs for comparisons: by several processes, and folded into one.

As a script: `_together_cases.py FOLDER NUM_RANKS NAME...` trains the cases, in as many processes as
it was started as, and leaves what happened in FOLDER. One process folds the replicas of all ranks.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import Tensor, nn

from torchkiln import LAMB, Options, distributed, training_model

Maker = Callable[[Any], torch.optim.Optimizer]


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.3, momentum=0.9)


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.01)


def clipped(parameters: Any) -> torch.optim.Optimizer:
    """AdamW that limits the norm of gradients, and scales the loss by no power of two."""
    optimizer = torch.optim.AdamW(parameters, lr=0.01)
    optimizer.max_grad_norm, optimizer.loss_scaling = 0.5, 10.0
    return optimizer


def half_sums(parameters: Any) -> torch.optim.Optimizer:
    optimizer = sgd(parameters)
    optimizer.state_dtypes = {"grad": torch.bfloat16}
    return optimizer


class Regression(nn.Module):
    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(self.body(x).flatten(1), y)


def perceptron() -> nn.Module:
    return Regression(nn.Sequential(nn.Linear(24, 40), nn.Tanh(), nn.Linear(40, 5)))


def images() -> nn.Module:
    """Convolutions whose weights lie channels last."""
    layers = [nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 5, 3), nn.AdaptiveAvgPool2d(1)]
    return Regression(nn.Sequential(*layers)).to(memory_format=torch.channels_last)


def schnet() -> nn.Module:
    from torchkiln.models import MoleculeRegression, SchNet

    small = {"hidden_channels": 24, "num_filters": 16, "num_interactions": 2, "num_gaussians": 12}
    return MoleculeRegression(SchNet(**small))


@dataclass(frozen=True)
class Case:
    """A training run.

    Args:
        model: Makes the module.
        optimizer: Makes the optimiser.
        options: Of each process.
        dtype: Of the parameters.
        num_calls: Of the program.
        shape: Of one sample.
        batch_size: Of a micro-batch.
        tolerance: Largest difference from the weights of one process; 0: the same bits. Sums of
            several micro-batches a process are added in another order than in one, which costs the
            last digit.
    """

    model: Callable[[], nn.Module] = perceptron
    optimizer: Maker = sgd
    options: dict[str, Any] = field(default_factory=dict)
    dtype: torch.dtype = torch.float32
    num_calls: int = 20
    shape: tuple[int, ...] = (24,)
    batch_size: int = 6
    tolerance: float = 0.0


CAPTURE = {"backend": "capture"}
NATIVE = {"backend": "inductor"}
CASES = {
    "sgd": Case(options=CAPTURE),
    "adam": Case(optimizer=adam, options=CAPTURE),
    "eager": Case(optimizer=adam, options={"backend": "eager"}),
    # More rows than a matrix product adds up in one go: it must not begin with the sum so far.
    "native sgd": Case(options=NATIVE, batch_size=1500),
    "native accumulation": Case(
        optimizer=adam, options={**NATIVE, "gradient_accumulation": 2}, tolerance=1e-6
    ),
    "accumulation": Case(options={**CAPTURE, "gradient_accumulation": 2}, tolerance=1e-6),
    "sum": Case(optimizer=adam, options={**CAPTURE, "reduction": "sum"}),
    "clipping": Case(optimizer=clipped, options=CAPTURE),
    "lamb": Case(optimizer=lambda parameters: LAMB(parameters, lr=0.01), options=CAPTURE),
    "iterations": Case(options={**CAPTURE, "device_iterations": 3}, num_calls=7),
    "replicas": Case(options={**CAPTURE, "replication_factor": 2}, tolerance=1e-6),
    "everything": Case(
        optimizer=clipped,
        options={
            **CAPTURE,
            "replication_factor": 2,
            "gradient_accumulation": 2,
            "device_iterations": 3,
        },
        num_calls=7,
        tolerance=1e-6,
    ),
    "float64": Case(optimizer=adam, options=CAPTURE, dtype=torch.float64),
    "bfloat16": Case(optimizer=adam, options=CAPTURE, dtype=torch.bfloat16),
    # What a process adds is rounded to three digits once more.
    "half sums": Case(optimizer=half_sums, options=CAPTURE, tolerance=0.02),
    "fastest": Case(options={**CAPTURE, "reduction_order": "fastest"}),
    "images": Case(model=images, options=NATIVE, shape=(3, 8, 8)),
    "schnet": Case(model=schnet, optimizer=adam, options=CAPTURE, num_calls=10),
    "long schnet": Case(model=schnet, optimizer=adam, options=NATIVE, num_calls=50),
    "long schnet with sgd": Case(
        model=schnet,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1e-5),
        options=NATIVE,
        num_calls=50,
    ),
    "long schnet with accumulation": Case(
        model=schnet,
        optimizer=adam,
        options={**NATIVE, "gradient_accumulation": 2},
        num_calls=50,
        tolerance=1e-6,
    ),
}


def calls_of(case: Case, folded: Options) -> Iterator[list[Tensor]]:
    """Yield the arguments of one call after the other, for all ranks together."""
    if case.model is schnet:
        yield from _molecules(case, folded)
        return
    generator = torch.Generator().manual_seed(5)
    size = case.batch_size * folded.combined_factor
    for _ in range(case.num_calls):
        x = torch.randn(size, *case.shape, generator=generator).to(case.dtype)
        if len(case.shape) == 3:
            x = x.contiguous(memory_format=torch.channels_last)
        yield [x, x.flatten(1)[:, :5].sin()]


def _molecules(case: Case, folded: Options) -> Iterator[list[Tensor]]:
    from torchkiln.datasets import load_qm9
    from torchkiln.graphs import FixedSizeLoader

    dataset = load_qm9(limit=400, references="fitted", standardize=True, progress=False)
    loader = FixedSizeLoader(
        dataset.store, num_nodes=80, shuffle=True, seed=3, options=folded.replace(num_processes=1)
    )
    names = ("z", "edge_index", "edge_weight", "edge_ways", "batch", "y", "graph_mask")
    num_calls = 0
    while num_calls < case.num_calls:
        for batch in loader:
            if num_calls == case.num_calls:
                break
            yield [getattr(batch, name) for name in names]
            num_calls += 1


def share_of(rank: int, tensor: Tensor, own: Options, folded: Options) -> Tensor:
    """Return what a rank gets of an argument for all of them."""
    parts = tensor.chunk(folded.combined_factor)
    per_rank = own.replication_factor
    chosen = [
        part for i, part in enumerate(parts) if i % folded.replication_factor // per_rank == rank
    ]
    return torch.cat(chosen)


def train(case: Case, num_ranks: int, **changes: Any) -> dict[str, Any]:
    """Train a case in this process, with others or in their place, and return what happened."""
    world = distributed.start()
    own = Options(**{**case.options, "show_progress": False, **changes})
    folded = own.replace(replication_factor=own.replication_factor * num_ranks)
    # Only rank 0 begins with the right weights.
    torch.manual_seed(world.rank)
    module = case.model().to(case.dtype)
    alone = world.size == 1
    options = folded if alone else world.options(own)
    program = training_model(module, options, case.optimizer(module.parameters()))
    program.exchange_notes(options.micro_batches_per_update, _losses)
    weights, losses = [], []
    for arguments in calls_of(case, folded):
        mine = arguments
        if not alone:
            mine = [share_of(world.rank, tensor, own, folded) for tensor in arguments]
        program(*mine)
        weights.append([p.detach().clone() for p in module.parameters()])
        losses.append(_in_folded_order(program.notes, own, num_ranks, alone))
    state = program.optimizer.state_dict()["state"]
    return {
        "weights": weights,
        "losses": torch.stack(losses),
        "state": state,
        "compiles": program.num_compiles,
        "seconds": program.collective_seconds,
    }


def _losses(outputs: list[Any]) -> list[float]:
    return [float(out[1] if isinstance(out, tuple) else out) for out in outputs]


def _in_folded_order(notes: Tensor, own: Options, num_ranks: int, alone: bool) -> Tensor:
    """Return losses as [iterations, accumulation, all replicas]."""
    steps, accumulation = notes.shape[0], own.gradient_accumulation
    if alone:
        return notes.reshape(steps, accumulation, -1)
    apart = notes.reshape(steps, num_ranks, accumulation, own.replication_factor)
    return apart.transpose(1, 2).reshape(steps, accumulation, -1)


def main() -> None:
    folder, num_ranks, *names = sys.argv[1:]
    rank = distributed.start().rank
    for name in names:
        torch.save(train(CASES[name], int(num_ranks)), Path(folder, f"{name}-{rank}.pt"))


if __name__ == "__main__":
    main()
