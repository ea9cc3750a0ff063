"""What somebody must know to repeat the figures of a run."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import torch

import torchkiln
from torchkiln.core._threads import usable_cores


def describe_machine() -> dict[str, Any]:
    """Return what somebody must know to repeat the figures."""
    return {
        "processor": _processor(),
        "cores": len(usable_cores()),
        "threads": torch.get_num_threads(),
        "pinned": os.environ.get("OMP_PROC_BIND") == "true",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torchkiln": torchkiln.__version__,
        "system": platform.platform(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
