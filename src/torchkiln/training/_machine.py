"""What somebody must know to repeat the figures of a run."""

from __future__ import annotations

import os
import platform
from typing import Any

import torch

import torchkiln
from torchkiln.core._machine import processor_name
from torchkiln.core._threads import usable_cores


def describe_machine() -> dict[str, Any]:
    """Return what somebody must know to repeat the figures."""
    return {
        "processor": processor_name(),
        "cores": len(usable_cores()),
        "threads": torch.get_num_threads(),
        "pinned": os.environ.get("OMP_PROC_BIND") == "true",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torchkiln": torchkiln.__version__,
        "system": platform.platform(),
    }
