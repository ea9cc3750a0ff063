"""bench.py, at one of whose ranks something happens once: before a step, or by a signal.

FAULT_MARK=FILE FAULT_SIGNAL=SIGKILL FAULT_RANK=1 torchrun ... _rank_bench.py FLAG...
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))

from rank_faults import at_call, once, send

from torchkiln.apps.schnet import main

CALL = 4  # the first of the third epoch

if __name__ == "__main__":
    kind = signal.Signals[os.environ.get("FAULT_SIGNAL", "SIGKILL")]
    marker = Path(os.environ["FAULT_MARK"])
    rank = int(os.environ.get("FAULT_RANK", "-1"))
    with at_call(CALL, once(marker, send(kind)), rank):
        sys.exit(main(prog="bench.py"))
