"""Where the time of a run goes.

Names below are imported when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchkiln.core._lazy_names import lazy_names

if TYPE_CHECKING:
    from torchkiln.profiling.system._merge import merge as merge
    from torchkiln.profiling.system._recording import record as record
    from torchkiln.profiling.system._summary import Summary as Summary
    from torchkiln.profiling.system._summary import summarize as summarize

_PLACES = {
    "Summary": "torchkiln.profiling.system._summary",
    "merge": "torchkiln.profiling.system._merge",
    "record": "torchkiln.profiling.system._recording",
    "summarize": "torchkiln.profiling.system._summary",
}
__all__ = list(_PLACES)
__getattr__ = lazy_names(__name__, _PLACES)
