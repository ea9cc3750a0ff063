"""Where time and memory go: of one step (graph profile), and of a whole run (system profile).

Names below are imported when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchkiln.core._lazy_names import lazy_names

if TYPE_CHECKING:
    from torchkiln.profiling.graph._file import load_profile as load_profile
    from torchkiln.profiling.graph._profile import plan_program as plan_program
    from torchkiln.profiling.graph._profile import profile_program as profile_program
    from torchkiln.profiling.graph._values import GraphProfile as GraphProfile
    from torchkiln.profiling.views._write import write_report as write_report

_PLACES = {
    "GraphProfile": "torchkiln.profiling.graph._values",
    "load_profile": "torchkiln.profiling.graph._file",
    "plan_program": "torchkiln.profiling.graph._profile",
    "profile_program": "torchkiln.profiling.graph._profile",
    "write_report": "torchkiln.profiling.views._write",
}
__all__ = list(_PLACES)
__getattr__ = lazy_names(__name__, _PLACES)
