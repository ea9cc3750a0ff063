"""What native code must know about the processor it runs on."""

from __future__ import annotations

import functools
import hashlib
import platform
from pathlib import Path


@functools.cache
def cpu_features() -> str:
    """Return a digest of the instruction sets: code built for one CPU may not run on another."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = f"flags {platform.processor()}"
    flags = next((line for line in text.splitlines() if line.startswith(("flags", "Features"))), "")
    return hashlib.sha256(f"{platform.machine()} {flags}".encode()).hexdigest()[:16]


@functools.cache
def processor_name() -> str:
    """Return what the processor calls itself."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()
