"""Both façades belong together: this one works on Torchkiln's `poptorch` alone."""

from __future__ import annotations

import poptorch


def require_own_poptorch(version: str, where: str | None) -> None:
    """Raise if another package is imported as `poptorch` than Torchkiln's.

    Raises:
        ImportError: naming the other one, and what to do.
    """
    if "torchkiln" not in version:
        raise ImportError(
            f"poptorch_geometric of Torchkiln needs Torchkiln's poptorch, but poptorch {version} "
            f"in {where} is in use; uninstall that one, or install the poptorch_geometric that "
            "belongs to it",
            name="poptorch",
        )


require_own_poptorch(str(getattr(poptorch, "__version__", "?")), poptorch.__file__)
