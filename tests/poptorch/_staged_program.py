"""PopTorch programs whose blocks several processes divide: `_staged_program.py FOLDER CASE...`."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import poptorch
from torchkiln import distributed


class Net(torch.nn.Module):
    """Two blocks, by annotation and by context, and a skip over both."""

    def __init__(self, second="1"):
        super().__init__()
        self.first = poptorch.BeginBlock(torch.nn.Linear(6, 8), "0", ipu_id=0)
        self.last = torch.nn.Linear(8, 1)
        self.second = second

    def forward(self, x, y):
        h = torch.tanh(self.first(x))
        with poptorch.Block(self.second, ipu_id=1):
            return poptorch.identity_loss(torch.nn.functional.mse_loss(self.last(h), y), "mean")


def stages(kind):
    return kind(poptorch.Stage("0"), poptorch.Stage("1"))


CASES = {
    "pipelined": (lambda: stages(poptorch.PipelinedExecution), 5),
    "sharded": (lambda: stages(poptorch.ShardedExecution), 1),
    "automatic": (lambda: poptorch.PipelinedExecution(poptorch.AutoStage.SameAsIpu), 5),
    "increment": (lambda: poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement), 5),
    "too few": (lambda: stages(poptorch.PipelinedExecution), 2),
    "unknown": (lambda: stages(poptorch.PipelinedExecution), 3),
}


def train(name):
    strategy, accumulation = CASES[name]
    torch.manual_seed(0)
    model = Net("other" if name == "unknown" else "1")
    options = poptorch.Options().setExecutionStrategy(strategy())
    options.Training.gradientAccumulation(accumulation)
    options.showCompilationProgressBar(False)
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    try:
        program = poptorch.trainingModel(model, options, optimizer)
        generator = torch.Generator().manual_seed(1)
        for _ in range(6):
            x = torch.randn(4 * accumulation, 6, generator=generator)
            losses.append(float(program(x, x.sum(dim=1, keepdim=True))))
    except (poptorch.Error, AssertionError) as error:
        return {"error": f"{type(error).__name__}: {error}"}
    program.copyWeightsToHost()
    return {"losses": losses, "weights": {n: t.clone() for n, t in model.state_dict().items()}}


if __name__ == "__main__":
    folder, *names = sys.argv[1:]
    rank = distributed.start().rank
    torch.save({name: train(name) for name in names}, Path(folder, f"{rank}.pt"))
