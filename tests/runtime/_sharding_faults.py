"""Rank 1 is killed in the middle of a divided update: `_sharding_faults.py WHERE`."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from _sharding_cases import CASES, batches_of, program_of

from torchkiln.core import DistributedError
from torchkiln.distributed import start


def main() -> None:
    where = sys.argv[1]
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # what survivors notice is the question here
    world = start(timeout_s=30)
    program = program_of(CASES["adamw"], is_divided=True, collective_timeout_s=20.0)
    batches = batches_of(program)
    program(*batches[0])
    if world.rank == 1:

        def die(*arguments: Any) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

        setattr(program.group, where, die)
    try:
        program(*batches[1])
    except DistributedError as error:
        print(f"rank {world.rank}: {error}", flush=True)
        sys.exit(3)


if __name__ == "__main__":
    main()
