"""One cold start in a process of its own: seconds from a model to the end of its first step.

Called by compile_time.py with a model, a contender and sizes; the caches are those that the
environment names. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

import torch
from _compile_time_models import make_batch, make_model, sizes_of

LEARNING_RATE = 1e-4


def start_torchkiln(model: Any, batch: dict[str, torch.Tensor]) -> dict[str, float]:
    """Compile a training step, update included, and run it."""
    from torchkiln import Options, training_model

    optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE)
    program = training_model(model, Options(show_progress=False), optimizer)
    program(**batch)
    assert program.num_compiles == 1
    return program.built.phases


def start_torch_compile(model: Any, batch: dict[str, torch.Tensor]) -> dict[str, float]:
    """Run the first step as people write it: a compiled model, and torch's own update."""
    optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE)
    compiled = torch.compile(model)
    compiled(**batch).loss.backward()
    optimizer.step()
    return {}


def start_torch_compile_whole(model: Any, batch: dict[str, torch.Tensor]) -> dict[str, float]:
    """Run the first step with the update compiled as well, which is what a program does."""
    # A tensor, or torch compiles again with every new learning rate.
    optimizer = torch.optim.AdamW(model.parameters(), torch.tensor(LEARNING_RATE))
    compiled, update = torch.compile(model), torch.compile(optimizer.step)
    compiled(**batch).loss.backward()
    update()
    return {}


CONTENDERS = {
    "torchkiln": start_torchkiln,
    "torch.compile": start_torch_compile,
    "torch.compile, update included": start_torch_compile_whole,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("contender", choices=CONTENDERS)
    parser.add_argument("--tiny", action="store_true")
    wanted = parser.parse_args()
    torch.manual_seed(0)
    sizes = sizes_of(tiny=wanted.tiny)
    model, batch = make_model(wanted.model, sizes).train(), make_batch(sizes)
    start = time.perf_counter()
    phases = CONTENDERS[wanted.contender](model, batch)
    seconds = time.perf_counter() - start
    sys.stdout.write(json.dumps({"seconds": seconds, "phases": phases}) + "\n")


if __name__ == "__main__":
    main()
