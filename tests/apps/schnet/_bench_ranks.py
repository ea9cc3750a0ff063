"""The benchmark as one of several ranks, again and again in one launch.

    torchrun --nproc-per-node 2 _bench_ranks.py FOLDER FLAG...

Exit codes go to FOLDER/codes-RANK.json, by the name of the run.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "training"))

from rank_faults import RANK, at_call, before, send, spoil

from torchkiln.apps.schnet import main
from torchkiln.apps.schnet._task import MoleculeTask


def run_all(flags: list[str]) -> dict[str, int]:
    codes = {}

    def run(name, *more, within=None):
        with within or contextlib.nullcontext():
            codes[name] = main([*more, "--run_name", name])

    run("whole", *flags, "--checkpoint", "--model_name", "whole")
    # Ctrl-C in the second epoch, at one rank alone.
    stop = at_call(4, send(signal.SIGINT))
    run("stopped", *flags, "--checkpoint", "--model_name", "stopped", within=stop)
    run("resumed", "--resume", "--model_name", "stopped", "--output_dir", "again")
    # Ctrl-C while the first epoch is validated, at one rank alone.
    judging = before(MoleculeTask, "validate", send(signal.SIGINT))
    run("judged", *flags, "--checkpoint", "--model_name", "judged", within=judging)
    nan = at_call(4, spoil)
    run("spoilt", *flags, "--checkpoint", "--model_name", "spoilt", within=nan)
    codes["complete"] = main(["--resume", "--model_name", "whole"])
    run("eager", *flags, "--replication_factor", "-1")
    run("taken", *flags, "--checkpoint", "--model_name", "whole")
    run("loading", *flags, "--time_dataloader")
    return codes


if __name__ == "__main__":
    os.chdir(sys.argv[1])
    found = run_all(sys.argv[2:])
    Path(f"codes-{RANK}.json").write_text(json.dumps(found))
