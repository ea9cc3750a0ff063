"""CosmicTagger as one of several ranks, again and again in one launch.

    torchrun --nproc-per-node 2 _cosmic_ranks.py FOLDER ARGUMENT...

Exit codes go to FOLDER/codes-RANK.json, by the name of the run.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from torchkiln.apps.cosmic import CompiledDevice, main

RANK = int(os.environ["RANK"])
SIGNAL_AT = 4  # in the second epoch


class SignalledStep:
    """A step before one of whose calls rank 1 gets Ctrl-C."""

    def __init__(self, step):
        self._step = step
        self._calls = iter(range(1_000_000))

    def __getattr__(self, name):
        return getattr(self._step, name)

    def __call__(self, images, labels):
        if next(self._calls) == SIGNAL_AT and RANK == 1:
            os.kill(os.getpid(), signal.SIGINT)
        return self._step(images, labels)


class Signalled:
    """The device of that step."""

    def __init__(self, settings):
        self._device = CompiledDevice(settings)

    def __getattr__(self, name):
        return getattr(self._device, name)

    def make_training(self, module, optimizer):
        return SignalledStep(self._device.make_training(module, optimizer))


def run_all(arguments):
    codes = {}

    def run(name, *more, **keywords):
        codes[name] = main([*arguments, *more], **keywords)

    # Running averages of BatchNorm are each rank's own: without them, all figures are those of one.
    run("exact", "run.id=exact", "network.batch_norm=false")
    run("whole", "run.id=whole")
    run("stopped", "run.id=stopped", make_ipu=Signalled)
    run("resumed", "run.id=stopped", "mode.resume=true")
    run("inference", "run.id=whole", "mode=inference")
    run("iotest", "mode=iotest")
    run("plain", "run.id=plain", "run.compute_mode=CPU")
    return codes


if __name__ == "__main__":
    found = run_all(sys.argv[2:])
    Path(sys.argv[1], f"codes-{RANK}.json").write_text(json.dumps(found))
