"""Which part of the arguments of a call each micro-batch consumes."""

from __future__ import annotations

from torchkiln.core import InputGrouping, Options


def slice_order(options: Options) -> list[int]:
    """Return, for each micro-batch in order, which slice of the inputs it consumes."""
    size = options.input_group_size
    groups = options.replication_factor // size
    steps = options.device_iterations * options.gradient_accumulation
    consecutive = options.input_grouping is InputGrouping.CONSECUTIVE
    return [
        step * groups + (replica // size if consecutive else replica % groups)
        for step in range(steps)
        for replica in range(options.replication_factor)
    ]
