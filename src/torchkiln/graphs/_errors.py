"""What graphs can be refused for beside their size (`BatchTooLarge`)."""

from __future__ import annotations

from torchkiln.core import TorchkilnError


class GraphError(TorchkilnError, ValueError):
    """Graphs cannot make one batch: another class, attribute or type, or labels of no level."""
