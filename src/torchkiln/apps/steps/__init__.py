"""Time per training step of small models, with plain PyTorch and with Torchkiln.

Names below are imported when first used: threads are pinned before torch is loaded.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchkiln.apps.steps._measure import print_report as print_report
    from torchkiln.apps.steps._measure import run_step_benchmark as run_step_benchmark
    from torchkiln.apps.steps._measure import write_report as write_report
    from torchkiln.apps.steps._workloads import WORKLOADS as WORKLOADS

_PLACES = {
    "WORKLOADS": "_workloads",
    "print_report": "_measure",
    "run_step_benchmark": "_measure",
    "write_report": "_measure",
}
__all__ = list(_PLACES)


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        return getattr(importlib.import_module(f"torchkiln.apps.steps.{_PLACES[name]}"), name)
    raise AttributeError(f"module 'torchkiln.apps.steps' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
