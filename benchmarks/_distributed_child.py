"""One rank of a contender of benchmarks/distributed.py: `python _distributed_child.py FOLDER`.

Rank 0 is told by lines of its input for how many seconds to work, and answers each line with a JSON
object. The other ranks follow it. The folder holds settings.json, and the molecules for PyG.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchkiln.core._threads import pin_threads

FOLDER = Path(sys.argv[1])
SETTINGS = json.loads((FOLDER / "settings.json").read_text())
# Before torch is imported. The parent has chosen the cores.
pin_threads(SETTINGS["threads"])

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from _schnet_contenders import KEYS, LEARNING_RATE, MODELS, pyg_model

from torchkiln import Options, training_model
from torchkiln.distributed import start
from torchkiln.distributed._group import Group, group_of

# Ranks wait for the next turn while other contenders work.
_PATIENCE_S = 3_600.0


@dataclass
class Work:
    """What a rank did: molecules and loss of each step, and where its time went."""

    steps: list[tuple[int, float]] = field(default_factory=list)
    seconds: float = 0.0
    loading_s: float = 0.0
    collective_s: float = 0.0


# A step: batch -> (real molecules, mean loss over them).
Step = Callable[[Any], tuple[int, float]]


class Rank:
    """Makes steps on an endless stream of batches."""

    def __init__(self, batches: Iterator[Any], step: Step, collective_s: Callable[[], float]):
        self._batches = batches
        self._step = step
        self._collective_s = collective_s

    def work(self, num_steps: int) -> Work:
        done = Work()
        before, begin = self._collective_s(), time.perf_counter()
        for _ in range(num_steps):
            loading = time.perf_counter()
            batch = next(self._batches)
            done.loading_s += time.perf_counter() - loading
            done.steps.append(self._step(batch))
        done.seconds = time.perf_counter() - begin
        done.collective_s = self._collective_s() - before
        return done


def endless(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def torchkiln_rank(group: Group | None) -> Rank:
    from torchkiln.datasets import load_qm9
    from torchkiln.graphs import FixedSizeLoader
    from torchkiln.models import MoleculeRegression, SchNet

    size = MODELS[SETTINGS["model"]]
    dataset = load_qm9(
        limit=SETTINGS["limit"],
        k=size.k,
        cutoff_angstrom=size.arguments["cutoff"],
        references="fitted",
        standardize=True,
    )
    options = Options(
        cache_dir=Path(SETTINGS["cache"]),
        show_progress=False,
        replication_factor=SETTINGS["replicas"],
        collective_timeout_s=_PATIENCE_S,
    )
    options = start().options(options)
    loader = FixedSizeLoader(
        dataset.store,
        num_nodes=SETTINGS["num_nodes"],
        shuffle=True,
        as_tensors=True,
        options=options,
    )
    torch.manual_seed(0)
    module = MoleculeRegression(SchNet(**size.arguments, filter=SETTINGS["filter"]))
    optimizer = torch.optim.Adam(module.parameters(), lr=LEARNING_RATE)
    program = training_model(module, options.replace(output_mode="all"), optimizer)
    if group is not None and SETTINGS["delay_s"]:
        _slow_down(group, SETTINGS["delay_s"])

    def step(batch: Any) -> tuple[int, float]:
        _, losses = program(*(batch[key] for key in KEYS))
        return int(batch.graph_mask.sum()), losses.mean().item()

    return Rank(endless(loader), step, lambda: program.collective_seconds)


def _slow_down(group: Group, delay_s: float) -> None:
    """Let sums take so much longer, as they would over a slower network."""
    at_once = group.sum_

    def later(*args: Any, **kwargs: Any) -> None:
        at_once(*args, **kwargs)
        # Sleep, not spin: a network needs no core either.
        time.sleep(delay_s)

    group.sum_ = later  # type: ignore[method-assign]


def pyg_rank() -> Rank:
    from torch.nn.parallel import DistributedDataParallel
    from torch_geometric.loader import DataLoader

    if SETTINGS["flushed"]:
        torch.set_flush_denormal(True)
    world = start()
    directed, weights = torch.load(FOLDER / "workload.pt", weights_only=False)
    model: Any = pyg_model(MODELS[SETTINGS["model"]].arguments, weights)
    if world.size > 1:
        model = DistributedDataParallel(model)
    mine = directed[world.rank :: world.size]
    loader = DataLoader(mine, batch_size=SETTINGS["batch_size"], shuffle=True, drop_last=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)

    def step(batch: Any) -> tuple[int, float]:
        optimizer.zero_grad()
        out = model(batch.z, (batch.edge_index, batch.edge_weight), batch.batch)
        loss = F.mse_loss(out[:, 0], batch.y)
        loss.backward()
        optimizer.step()
        return batch.num_graphs, loss.item()

    # DDP reduces while backward runs: there is no time of its own to tell.
    return Rank(endless(loader), step, lambda: 0.0)


def main() -> None:
    world = start()
    group = group_of(world, _PATIENCE_S) if world.size > 1 else None
    rank = pyg_rank() if SETTINGS["kind"] == "pyg" else torchkiln_rank(group)
    step_s = float("inf")
    while True:
        line = sys.stdin.readline() if world.is_first else ""
        seconds = float(line) if line.strip() else None
        wanted = None if seconds is None else max(1, round(seconds / step_s))
        num_steps = wanted if group is None else group.from_first(wanted)
        if num_steps is None:
            return
        done = rank.work(num_steps)
        everyone = [done] if group is None else group.gather(done)
        if world.is_first:
            step_s = done.seconds / num_steps
            print(json.dumps(_together(everyone)), flush=True)


def _together(everyone: list[Work]) -> dict[str, Any]:
    """Return what all ranks did; a step is as long as the slowest of them."""
    steps = [
        (sum(count for count, _ in ranks), sum(loss for _, loss in ranks) / len(ranks))
        for ranks in zip(*(done.steps for done in everyone), strict=True)
    ]
    seconds = max(done.seconds for done in everyone)
    return {
        "steps": steps,
        "seconds": seconds,
        "loading_share": sum(done.loading_s for done in everyone) / len(everyone) / seconds,
        "collective_share": sum(done.collective_s for done in everyone) / len(everyone) / seconds,
    }


if __name__ == "__main__":
    main()
    # The other ranks leave at the same time: nobody waits for anybody's exit.
    sys.stdout.flush()
    os._exit(0)
