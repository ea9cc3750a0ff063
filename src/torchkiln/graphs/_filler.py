"""How the filler of a batch is divided among its filler graphs.

The one place that knows the layout: filler nodes are spread as evenly as possible over the filler
graphs, earlier ones get more; filler edges are spread in the same way over those filler graphs that
have a node, and are self-loops on the first node of theirs.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]


def spread(total: int, parts: int) -> Counts:
    """Divide `total` into `parts` numbers that differ by at most one, larger ones first."""
    shares = np.full(parts, total // parts if parts else 0, dtype=np.int64)
    shares[: total % parts if parts else 0] += 1
    return shares


def spread_filler(num_nodes: int, num_edges: int, num_graphs: int) -> tuple[Counts, Counts]:
    """Return the nodes and edges of each of `num_graphs` filler graphs.

    A graph without a node gets no edge; with no node at all there must be no edge to place.
    """
    nodes = spread(num_nodes, num_graphs)
    edges = np.zeros(num_graphs, dtype=np.int64)
    hosts = min(num_nodes, num_graphs)
    assert hosts or not num_edges, "filler edges need a filler node to loop on"
    edges[:hosts] = spread(num_edges, hosts)
    return nodes, edges
