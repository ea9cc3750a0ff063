"""Keeping forward and backward in kernels of their own where a program recomputes.

A recomputed operation reads what its original read. Inductor likes to compute both in one kernel,
which saves reading and brings back all the memory that recomputing was to save.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torchkiln.runtime.passes._origins import Phase, joint_origin
from torchkiln.torch_internals._inductor_patches import fused_only_if


@contextlib.contextmanager
def phases_apart() -> Iterator[None]:
    """Let Inductor fuse no kernel of forward with one of backward or of the update."""
    with fused_only_if(lambda first, second: _is_forward(first) == _is_forward(second)):
        yield


def _is_forward(node: Any) -> bool:
    """Whether all parts of a scheduled node belong to forward."""
    return all(
        joint_origin(part.node.origins).phase is Phase.FORWARD
        for part in node.get_nodes()
        if part.node is not None
    )
