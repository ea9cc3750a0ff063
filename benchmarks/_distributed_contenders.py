"""Contenders of several processes, each on cores of its own; rank 0 is told what to do."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from _schnet_rounds import Contender

CHILD = Path(__file__).with_name("_distributed_child.py")


@dataclass(frozen=True)
class Setup:
    """How a contender works.

    Args:
        kind: "torchkiln" or "pyg".
        ranks: Processes.
        threads: Of each process, one for each of its cores.
        replicas: Folded into each process.
        batch_size: Molecules in a batch of PyG, on each rank.
        flushed: Whether PyG takes denormal numbers for zero.
        delay_s: How much longer each sum of gradients takes.
    """

    kind: str
    ranks: int
    threads: int
    replicas: int = 1
    batch_size: int = 0
    flushed: bool = False
    delay_s: float = 0.0


@dataclass
class Shares:
    """How much of the time went where, turn by turn."""

    loading: list[float] = field(default_factory=list)
    collective: list[float] = field(default_factory=list)
    step_s: list[float] = field(default_factory=list)


class RanksContender(Contender):
    """Starts the ranks, and hands seconds to rank 0, line by line.

    Args:
        name: For tables.
        setup: Who works how.
        common: Settings of all contenders.
        files: What ranks find in their folder besides, by name: links to these.
    """

    def __init__(
        self, name: str, setup: Setup, common: dict[str, Any], files: dict[str, Path]
    ) -> None:
        super().__init__(name, [], lambda batch: (0, 0.0))
        self.setup = setup
        self.shares = Shares()
        self._folder = tempfile.TemporaryDirectory(prefix="torchkiln-ranks-")
        folder = Path(self._folder.name)
        for file, target in files.items():
            (folder / file).symlink_to(target)
        (folder / "settings.json").write_text(json.dumps({**common, **vars(setup)}))
        port = _free_port()
        self._ranks = [self._start(rank, folder, port) for rank in range(setup.ranks)]

    def _start(self, rank: int, folder: Path, port: int) -> subprocess.Popen[str]:
        cores = sorted(os.sched_getaffinity(0))
        mine = cores[rank * self.setup.threads : (rank + 1) * self.setup.threads]
        if len(mine) < self.setup.threads:
            raise SystemExit(
                f"{self.name} needs {self.setup.ranks * self.setup.threads} cores, but there are "
                f"{len(cores)}; choose fewer --ranks"
            )
        environment = {key: value for key, value in os.environ.items() if "OMP" not in key}
        if self.setup.ranks > 1:
            environment |= {
                "RANK": str(rank),
                "WORLD_SIZE": str(self.setup.ranks),
                "LOCAL_RANK": str(rank),
                "LOCAL_WORLD_SIZE": str(self.setup.ranks),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                # The number of threads is what this benchmark chose.
                "OMP_NUM_THREADS": str(self.setup.threads),
            }
        command = ["taskset", "-c", ",".join(map(str, mine))]
        return subprocess.Popen(
            [*command, sys.executable, str(CHILD), str(folder)],
            stdin=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
            stdout=subprocess.PIPE if rank == 0 else None,
            env=environment,
            text=True,
        )

    def work(self, seconds: float) -> tuple[list[tuple[int, float]], float]:
        first = self._ranks[0]
        assert first.stdin is not None
        assert first.stdout is not None
        first.stdin.write(f"{seconds}\n")
        first.stdin.flush()
        answer = first.stdout.readline()
        if not answer:
            raise RuntimeError(f"rank 0 of {self.name} ended with code {first.wait()}")
        done = json.loads(answer)
        self.shares.loading.append(done["loading_share"])
        self.shares.collective.append(done["collective_share"])
        self.shares.step_s.append(done["seconds"] / len(done["steps"]))
        return [(count, loss) for count, loss in done["steps"]], done["seconds"]

    def close(self) -> None:
        first = self._ranks[0]
        assert first.stdin is not None
        first.stdin.close()
        try:
            for rank in self._ranks:
                rank.wait(timeout=30)
        finally:
            for rank in self._ranks:
                rank.kill()
            self._folder.cleanup()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
