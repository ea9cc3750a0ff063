"""Everything about this machine and process that native code may depend on."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import sys
from typing import Any

import torch

from torchkiln.core import __version__, cpu_features
from torchkiln.core._own_code import OWN_FOLDERS, SOURCES

# Python, and what is compiled of ours into steps.
_SOURCES = (".py", ".c", ".cpp", ".h")


@functools.cache
def _own_sources() -> str:
    """Return a digest of all own code: layers, façades and data make graphs, not only the runtime.

    Names count too, so that code that moves between files is not taken for the same.
    """
    digest = hashlib.sha256()
    home = str(SOURCES)
    for own in OWN_FOLDERS:
        for folder, below, names in os.walk(own):
            below[:] = sorted(name for name in below if name != "__pycache__")
            for name in sorted(names):
                if name.endswith(_SOURCES):
                    path = os.path.join(folder, name)
                    with open(path, "rb", buffering=0) as file:
                        content = file.read()
                    digest.update(f"{path[len(home) :]} {len(content)}\0".encode() + content)
    return digest.hexdigest()[:16]


def describe_environment(device: torch.device) -> dict[str, Any]:
    """Return versions, hardware and process-wide settings as plain values."""
    values: dict[str, Any] = {
        "torchkiln": __version__,
        "sources": _own_sources(),
        "torch": torch.__version__,
        "python": sys.version_info[:3],
        "platform": platform.platform(),
        "cpu": cpu_features(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        # Inductor writes the number of threads into the code it generates.
        "threads": torch.get_num_threads(),
        "default_dtype": str(torch.get_default_dtype()),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "matmul_precision": torch.get_float32_matmul_precision(),
        "mkldnn": torch.backends.mkldnn.enabled,
        "default_device": str(torch.get_default_device()),
        "attention": [
            torch.backends.cuda.flash_sdp_enabled(),
            torch.backends.cuda.mem_efficient_sdp_enabled(),
            torch.backends.cuda.math_sdp_enabled(),
        ],
        "autocast": [torch.is_autocast_enabled(device.type), str(torch.get_autocast_dtype("cpu"))],
        "compiler": os.environ.get("CXX", ""),
        "device": device.type,
    }
    if device.type == "cuda":
        values["cuda"] = [torch.version.cuda, torch.cuda.get_device_capability(device)]
    return values
