"""The learning rate as a function of how far training is: nothing to save, nothing to resume."""

from __future__ import annotations

import math


def learning_rate_at(update: int, num_updates: int, highest: float, warmup: float) -> float:
    """Return the learning rate of an update: a linear rise, then half a cosine down to zero.

    Args:
        update: Its number, from 0.
        num_updates: Of the whole run.
        highest: At the top.
        warmup: Share of the updates that rise.
    """
    rising = int(warmup * num_updates)
    if update < rising:
        return highest * (update + 1) / rising
    # The last one is still above zero: an update that changes nothing would be wasted.
    share = (update - rising) / max(num_updates - rising, 1)
    return highest * 0.5 * (1 + math.cos(math.pi * share))
