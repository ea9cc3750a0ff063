"""One stage gets into trouble between two calls or within one; the other says what it notices.

python _stage_faults.py FAULT VICTIM TIMEOUT
"""

from __future__ import annotations

import os
import re
import signal
import sys
import time

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import Tensor, nn

from torchkiln import Options, training_model
from torchkiln.core import DistributedError, ExecutableError
from torchkiln.distributed import start
from torchkiln.runtime.pipeline import _stage_run


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.last = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return F.mse_loss(self.last(torch.tanh(self.first(x))), x[:, :1])


def get_into_trouble(fault: str) -> None:
    match fault:
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "raises":
            raise ValueError("bad data")


def within_a_call(fault: str) -> None:
    """Let it happen in the middle of the micro-batches of the next call."""
    run, count = _stage_run.StageRun._let_go, iter(range(1000))

    def then(self: _stage_run.StageRun, turn: _stage_run.Turn) -> None:
        if next(count) == 3:
            get_into_trouble(fault)
        run(self, turn)

    _stage_run.StageRun._let_go = then  # type: ignore[method-assign]


def main() -> None:
    fault, victim, timeout_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    world = start(timeout_s=30)
    torch.manual_seed(0)
    options = Options(
        backend="capture",
        show_progress=False,
        gradient_accumulation=4,
        pipeline=["first", "last"],
        collective_timeout_s=timeout_s,
    )
    module = Net()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    program = training_model(module, world.options(options), optimizer)
    x = torch.randn(16, 6)
    for _ in range(3):
        program(x)
    if fault == "other data":
        x = x + world.rank
    elif fault == "other rate" and world.rank == victim:
        optimizer.param_groups[0]["lr"] = 0.2
        program.set_optimizer(optimizer)
    elif world.rank == victim:
        within_a_call(fault)
    begin = time.monotonic()
    try:
        program(x)
    except (DistributedError, ValueError) as error:
        print(f"rank {world.rank} after {time.monotonic() - begin:.1f} s: {error}", flush=True)
        with pytest.raises(DistributedError):
            program(x)
        with pytest.raises(ExecutableError, match=re.escape("gather_weights()")):
            module.state_dict()
        program.destroy()
        sys.exit(3)
    sys.exit(5)


if __name__ == "__main__":
    main()
