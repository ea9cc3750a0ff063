"""What training and evaluation do differently for a network with tabulated filters."""

from __future__ import annotations

import math
from typing import final

from torch import nn

from torchkiln.graphs import BatchSpec
from torchkiln.models import BakedSchNet, MoleculeRegression, SchNet

# Interpolation errs by about 1e-6 of the filters where it is as good as float32 itself; a hundred
# times that would begin to show in the errors of small targets.
_TOLERANCE = 1e-4


def tabulated(regression: nn.Module, spec: BatchSpec) -> SchNet | None:
    """Return the network of `regression` if it uses tables for batches of this size."""
    model = getattr(regression, "model", None)
    if not isinstance(model, SchNet) or not isinstance(spec.num_edges, int):
        return None
    return model if model.uses_table(spec.num_edges) else None


@final
class BakedRegression:
    """A regression for evaluation whose tables are computed once per weights, not once a batch.

    Args:
        regression: The one with the weights; it is followed by `refresh`.
        model: Its network.
    """

    def __init__(self, regression: MoleculeRegression, model: SchNet) -> None:
        self._model = model
        self._baked: BakedSchNet = model.bake()
        self.module = MoleculeRegression(self._baked, regression.loss).eval()

    def refresh(self) -> None:
        """Take over the present weights."""
        self._baked.refresh(self._model)


@final
class TableWatch:
    """Compares tables with exact filters while a network learns.

    Training sharpens filters, so a table that was exact at the start may not stay so.

    Args:
        model: Whose filters are tabulated; None: nothing to watch.
    """

    def __init__(self, model: SchNet | None) -> None:
        self._model = model
        self._told = False
        self.error: float | None = None

    def look(self) -> str | None:
        """Measure; return what to tell the person the first time that it is bad."""
        if self._model is None:
            return None
        self.error = self._model.table_error()
        # Weights that are NaN are not the table's fault, and reported elsewhere.
        if self._told or not _TOLERANCE < self.error < math.inf:
            return None
        self._told = True
        return (
            f"filters from tables are off by {self.error:.1e} of their size; errors may be larger "
            "than they need be: use --model.filter exact"
        )
