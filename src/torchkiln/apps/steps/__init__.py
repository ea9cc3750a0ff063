"""Time per training step of small models, with plain PyTorch and with Torchkiln.

Names below are imported when first used: threads are pinned before torch is loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchkiln.core._lazy_names import lazy_names

if TYPE_CHECKING:
    from torchkiln.apps.steps._measure import print_report as print_report
    from torchkiln.apps.steps._measure import run_step_benchmark as run_step_benchmark
    from torchkiln.apps.steps._measure import write_report as write_report
    from torchkiln.apps.steps._workloads import WORKLOADS as WORKLOADS

_PLACES = {
    "WORKLOADS": "torchkiln.apps.steps._workloads",
    "print_report": "torchkiln.apps.steps._measure",
    "run_step_benchmark": "torchkiln.apps.steps._measure",
    "write_report": "torchkiln.apps.steps._measure",
}
__all__ = list(_PLACES)
__getattr__ = lazy_names(__name__, _PLACES)
