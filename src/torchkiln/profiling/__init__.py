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
    from torchkiln.profiling.system._merge import merge as merge
    from torchkiln.profiling.system._recording import record as record
    from torchkiln.profiling.system._summary import Summary as Summary
    from torchkiln.profiling.system._summary import summarize as summarize
    from torchkiln.profiling.views._write import write_report as write_report

_PLACES = {
    # of one step
    "GraphProfile": "torchkiln.profiling.graph._values",
    "load_profile": "torchkiln.profiling.graph._file",
    "plan_program": "torchkiln.profiling.graph._profile",
    "profile_program": "torchkiln.profiling.graph._profile",
    "write_report": "torchkiln.profiling.views._write",
    # of a whole run
    "Summary": "torchkiln.profiling.system._summary",
    "merge": "torchkiln.profiling.system._merge",
    "record": "torchkiln.profiling.system._recording",
    "summarize": "torchkiln.profiling.system._summary",
}
__all__ = list(_PLACES)
__getattr__ = lazy_names(__name__, _PLACES)
