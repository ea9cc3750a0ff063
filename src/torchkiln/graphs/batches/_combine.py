"""Joining mini-batches into the combined batch of one call."""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from typing import Any

from torchkiln.data import concatenate, container_of, flatten, rebuild

_logger = logging.getLogger("torchkiln.graphs")


def combine(batches: Sequence[Any]) -> Any:
    """Return mini-batches joined along dim 0, tensor by tensor, without shifting indices.

    `edge_index` of c mini-batches becomes `[2 * c, num_edges]`; a program cuts it apart again. The
    result has the sizes (`num_nodes`, `num_edges`, `num_graphs`) of one mini-batch. Attributes of a
    homogeneous batch that are not tensors are dropped, also if there is only one mini-batch.
    """
    first = batches[0]
    if len(batches) > 1:
        result = concatenate(list(batches))
    else:
        tensors, node = flatten(first)
        result = rebuild(node, tensors)
    if container_of(first) is not None:
        dropped = set(first.keys()) - set(result.keys())
        if dropped:
            _report_dropped(", ".join(sorted(dropped)))
    return result


@functools.cache
def _report_dropped(names: str) -> None:
    """Say once that attributes are gone."""
    _logger.debug("combined batches hold tensors only; dropped: %s", names)
