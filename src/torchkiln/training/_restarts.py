"""Jobs that a launcher starts again after a failure: they go on from their own checkpoint.

No torch up here.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

from torchkiln.checkpoints._generations import list_generations, read_newest
from torchkiln.core import CheckpointError
from torchkiln.core._process_identity import start_ticks

_RESTARTS = "TORCHELASTIC_RESTART_COUNT"
_RUN = "TORCHELASTIC_RUN_ID"
# What torchrun calls a run that nobody named.
_NAMELESS = ("", "none")


def job_name() -> str | None:
    """Return what a job of torchrun has in common with its restarts; None: this is none."""
    run = os.environ.get(_RUN)
    if run is None or _RESTARTS not in os.environ:
        return None
    if run not in _NAMELESS:
        return run
    # The launcher is the same process before and after a restart, and another one in another job.
    launcher = os.getppid()
    return f"{socket.gethostname()}/{launcher}/{start_ticks(launcher)}"


def is_restarted() -> bool:
    """Whether torchrun started this job before, and something went wrong."""
    count = os.environ.get(_RESTARTS, "0")
    return count.isdecimal() and int(count) > 0


def goes_on(directory: Path) -> bool:
    """Whether a checkpoint was written by this very job, before it was started again.

    One that was there before the job began is never continued unasked.
    """
    if not is_restarted() or not list_generations(directory):
        return False
    try:
        job = read_newest(directory).facts.get("job")
    except CheckpointError:  # whoever reads all of it says what is wrong
        return False
    return job is not None and job == job_name()
