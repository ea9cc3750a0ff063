"""Keeping forward and backward in kernels of their own where a program recomputes.

A recomputed operation reads what its original read. Inductor likes to compute both in one kernel,
which saves reading and brings back all the memory that recomputing was to save.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torchkiln.runtime.passes._origins import Phase, joint_origin


@contextlib.contextmanager
def phases_apart() -> Iterator[None]:
    """Let Inductor fuse no kernel of forward with one of backward or of the update."""
    from torch._inductor.choices import InductorChoices
    from torch._inductor.virtualized import V

    class Choices(InductorChoices):
        @staticmethod
        def can_fuse(scheduler: Any, node1: Any, node2: Any, shared_data_score: int) -> bool:
            return _is_forward(node1) == _is_forward(node2) and InductorChoices.can_fuse(
                scheduler, node1, node2, shared_data_score
            )

    with V.set_choices_handler(Choices()):
        yield


def _is_forward(node: Any) -> bool:
    """Whether all parts of a scheduled node belong to forward."""
    return all(
        joint_origin(part.node.origins)[1] is Phase.FORWARD
        for part in node.get_nodes()
        if part.node is not None
    )
