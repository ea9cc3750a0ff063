"""Runs for comparisons: of a model that processes divide among them, and of one process.

As a script: `_staged_cases.py FOLDER NAME...` runs the cases, in as many processes as it was
started as, and leaves what happened in FOLDER. One process runs what all pipelines run together.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import Tensor, nn

from torchkiln import LAMB, Options, Program, distributed, inference_model, training_model
from torchkiln.core import ExecutableError
from torchkiln.models import UResNet2D, UResNetSettings

Maker = Callable[[Any], torch.optim.Optimizer]
Blocks = tuple[Any, ...]


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.01)


def damped(parameters: Any) -> torch.optim.Optimizer:
    """Adam that makes nothing of gradients that are rounding alone, as those of keys' biases."""
    return torch.optim.Adam(parameters, lr=0.01, eps=1e-4)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def clipped(parameters: Any) -> torch.optim.Optimizer:
    """AdamW that limits the norm of gradients, and scales the loss by no power of two."""
    optimizer = torch.optim.AdamW(parameters, lr=0.01)
    optimizer.max_grad_norm, optimizer.loss_scaling = 0.1, 10.0
    return optimizer


class Skipping(nn.Module):
    """What the first block makes goes to each of the others; one of them counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(12, 16)
        self.second = nn.Linear(16, 16)
        self.third = nn.Linear(16, 5)
        self.frozen = nn.Parameter(torch.randn(16), requires_grad=False)
        self.register_buffer("num_calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        skipped = torch.tanh(self.first(x))
        h = torch.tanh(self.second(skipped)) * self.frozen
        out = self.third(h + skipped)
        self.num_calls += 1
        return out, F.mse_loss(out, y)


class Transformer(nn.Module):
    """Tokens in, the loss of the next ones out; both stages need the mask."""

    def __init__(self, width: int = 16, vocabulary: int = 11) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        layer = nn.TransformerEncoderLayer(width, 2, 32, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        tokens = (x[:, :9].abs() * 10).long() % 11
        mask = nn.Transformer.generate_square_subsequent_mask(8)
        h = self.layers(self.embedding(tokens[:, :-1]), mask=mask, is_causal=True)
        return F.cross_entropy(self.head(h).flatten(0, 1), tokens[:, 1:].flatten())


class Tagger(nn.Module):
    """A small UResNet2D with its loss; the connections over the U cross all stages."""

    def __init__(self) -> None:
        super().__init__()
        settings = UResNetSettings(
            n_initial_filters=4,
            network_depth=2,
            blocks_per_layer=1,
            blocks_deepest_layer=1,
            bottleneck_deepest=8,
            filter_size_deepest=3,
            batch_norm=True,
        )
        self.network = UResNet2D(settings)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        labels = (x * 3).abs().long() % 3
        return F.cross_entropy(self.network(x), labels)


@dataclass(frozen=True)
class Case:
    """A run.

    Args:
        model: Makes the module.
        pipelines: Blocks of the stages, by their number.
        options: Of each process.
        optimizer: Makes the optimiser; None: inference.
        num_calls: Of the program.
        shape: Of one sample.
        batch_size: Of a micro-batch.
        tolerance: Largest difference from the weights of one process. Sums of gradients are added
            in the same order, but by other code: the last digit may differ, and Adam's first steps
            make more of it.
    """

    pipelines: dict[int, Blocks]
    model: Callable[[], nn.Module] = Skipping
    options: dict[str, Any] = field(default_factory=dict)
    optimizer: Maker | None = adam
    num_calls: int = 10
    shape: tuple[int, ...] = (12,)
    batch_size: int = 6
    tolerance: float = 1e-5


CAPTURE = {"backend": "capture", "gradient_accumulation": 5}
SKIPPING: dict[int, Blocks] = {2: ("first", ["second", "third"]), 3: ("first", "second", "third")}
TRANSFORMER: dict[int, Blocks] = {
    2: ("embedding", ["layers.layers.1", "layers.layers.2", "head"]),
    3: (["embedding", "layers.layers.0"], "layers.layers.1", ["layers.layers.2", "head"]),
}
TAGGER: dict[int, Blocks] = {
    2: ("network.first", "network.deepest"),
    3: ("network.first", "network.deepest", "network.connections.0"),
}
CASES = {
    "skipping": Case(SKIPPING, options=CAPTURE),
    "momentum": Case(SKIPPING, options=CAPTURE, optimizer=sgd),
    "clipping": Case(SKIPPING, options=CAPTURE, optimizer=clipped),
    "lamb": Case(SKIPPING, options=CAPTURE, optimizer=lambda p: LAMB(p, lr=0.01)),
    "all outputs": Case(
        SKIPPING, options={**CAPTURE, "output_mode": "all", "device_iterations": 2}
    ),
    "sum of outputs": Case(SKIPPING, options={**CAPTURE, "output_mode": "sum"}),
    "replicas": Case(
        SKIPPING,
        options={**CAPTURE, "replication_factor": 2, "gradient_accumulation": 3},
    ),
    "sequential": Case(
        SKIPPING,
        options={"backend": "capture", "pipeline_schedule": "sequential"},
    ),
    "transformer": Case(TRANSFORMER, Transformer, CAPTURE, damped),
    "tagger": Case(TAGGER, Tagger, CAPTURE, shape=(3, 8, 16), batch_size=2, num_calls=5),
    "native": Case(TRANSFORMER, Transformer, {**CAPTURE, "backend": "inductor"}, damped),
    "inference": Case(
        SKIPPING, options={"backend": "capture", "device_iterations": 7}, optimizer=None
    ),
    "inference of a tagger": Case(
        TAGGER,
        Tagger,
        {"backend": "capture", "device_iterations": 4},
        None,
        shape=(3, 8, 16),
        num_calls=3,
    ),
}


def batches_of(case: Case, options: Options, num_pipelines: int, pipeline: int) -> list[Any]:
    """Return the arguments of all calls of one pipeline; its parts of those of all of them."""
    generator = torch.Generator().manual_seed(5)
    calls = []
    for _ in range(case.num_calls):
        steps = options.combined_factor // options.replication_factor
        size = (steps, num_pipelines, options.replication_factor * case.batch_size, *case.shape)
        whole = torch.randn(size, generator=generator)
        chosen = whole if pipeline < 0 else whole[:, pipeline : pipeline + 1]
        x = chosen.flatten(0, 2)
        calls.append((x, x.flatten(1)[:, :5].sin()))
    return calls


def run(case: Case, num_stages: int, num_pipelines: int) -> dict[str, Any]:
    """Run a case in this process, with others or in their place, and return what happened."""
    world = distributed.start()
    alone = world.size == 1
    training = case.optimizer is not None
    own = Options(**{**case.options, "show_progress": False}, pipeline=case.pipelines[num_stages])
    # Only rank 0 begins with the right weights, and inference with those that all have.
    torch.manual_seed(world.rank if training else 0)
    module = case.model()
    if alone:
        options = own.replace(replication_factor=own.replication_factor * num_pipelines)
    else:
        options = world.options(own)
    pipeline = -1 if alone else options.pipeline_id
    program: Program
    if case.optimizer is None:
        program = inference_model(module, options)
    else:
        program = training_model(module, options, case.optimizer(module.parameters()))
        program.exchange_notes(1, lambda outputs: [float(len(outputs))])
    outputs, weights = [], []
    for number, arguments in enumerate(batches_of(case, own, num_pipelines, pipeline)):
        result = program(*arguments)
        outputs.append(
            [t.detach().clone() for t in (result if isinstance(result, tuple) else [result])]
        )
        if number == 1 and not alone:
            with pytest.raises(ExecutableError, match="gather_weights"):
                module.state_dict()
        if number % 2:
            program.gather_weights()
            weights.append({name: t.clone() for name, t in module.state_dict().items()})
    program.gather_weights()
    optimizer = program.optimizer
    return {
        "outputs": outputs,
        "weights": weights,
        "last": module.state_dict(),
        "state": {} if optimizer is None else optimizer.state_dict()["state"],
        "notes": program.notes if training else None,
        "compiles": program.num_compiles,
        "stage": options.stage,
    }


def main() -> None:
    folder, num_stages, num_pipelines, *names = sys.argv[1:]
    rank = distributed.start().rank
    for name in names:
        result = run(CASES[name], int(num_stages), int(num_pipelines))
        torch.save(result, Path(folder, f"{name}-{rank}.pt"))


if __name__ == "__main__":
    main()
