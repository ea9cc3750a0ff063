"""Both façades belong together: this one works on Torchkiln's `poptorch` alone."""

from __future__ import annotations

import poptorch
from torchkiln.core._own_code import require_own_poptorch

require_own_poptorch(
    str(getattr(poptorch, "__version__", "?")), poptorch.__file__, package="poptorch_geometric"
)
