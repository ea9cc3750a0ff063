"""Sizes and slots for property-based tests."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st


@st.composite
def sizes_and_slots(draw, max_graphs=60):
    """Graphs with one to three axes, some without nodes or edges, and slots that hold each."""
    axes = draw(st.sampled_from([("nodes",), ("nodes", "edges"), ("nodes", "edges", "pairs")]))
    count = draw(st.integers(0, max_graphs))
    largest = draw(st.integers(0, 40))
    sizes = {
        axis: np.array(draw(st.lists(st.integers(0, largest), min_size=count, max_size=count)), int)
        for axis in axes
    }
    reserve = draw(st.integers(0, 2))
    slots = {axis: largest + reserve + draw(st.integers(0, 60)) for axis in axes}
    slots["graphs"] = reserve + draw(st.integers(1, 12))
    return sizes, slots, reserve


def molecules(count, seed=0):
    """Sizes like those of small molecules: edges grow faster than nodes, and vary."""
    random = np.random.default_rng(seed)
    nodes = np.clip(random.normal(18, 3, count).round(), 3, 29).astype(np.int64)
    edges = (nodes * (nodes - 1) * random.uniform(0.85, 1.0, count)).astype(np.int64) // 2 * 2
    return {"nodes": nodes, "edges": edges}
