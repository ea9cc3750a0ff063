"""One small batch of graphs, plain and padded, with everything that some layer takes as input."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchkiln.graphs._filler import spread_filler

F = 8  # node features
D = 4  # edge features
TYPES = 3  # kinds of nodes and of edges
SIZES = (5, 7, 4)
SLOTS = {"nodes": 22, "edges": 64, "graphs": 5}
MAX_NODES = 8  # more than any graph here has, filler graphs included
# Far from anything real: a layer that lets filler through is far off, too.
FILLER = 7.5


@dataclass
class Sample:
    """The tensors of a batch by name, and how many of its rows are real."""

    tensors: dict[str, Tensor]
    nodes: int
    edges: int
    graphs: int
    slots: dict[str, int]

    def __getattr__(self, name: str) -> Tensor:
        try:
            return self.__dict__["tensors"][name]
        except KeyError:
            raise AttributeError(name) from None

    @property
    def num_graphs(self) -> int:
        """Graphs of the batch, filler included."""
        return self.slots["graphs"]


def plain_sample(seed: int = 0) -> Sample:
    """Return three graphs with some self-loops, edges sorted by target."""
    rng = torch.Generator().manual_seed(seed)
    sources, targets, first = [], [], 0
    for size in SIZES:
        pairs = torch.rand(size, size, generator=rng) < 0.4
        pairs.fill_diagonal_(False)
        pairs[1, 1] = pairs[size - 1, size - 1] = True  # real self-loops
        source, target = pairs.nonzero(as_tuple=True)
        sources.append(source + first)
        targets.append(target + first)
        first += size
    edge_index = torch.stack([torch.cat(sources), torch.cat(targets)])
    edge_index = edge_index[:, torch.argsort(edge_index[1], stable=True)]
    n, e, g = sum(SIZES), edge_index.shape[1], len(SIZES)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng)

    tensors = {
        "x": normal(n, F),
        "x2": normal(n, F),
        "pos": normal(n, 3),
        "normal": torch.nn.functional.normalize(normal(n, 3), dim=-1),
        "history": normal(n, 3, F),
        "edge_index": edge_index,
        "edge_index2": edge_index.flip(0),
        "edge_attr": normal(e, D),
        "edge_weight": torch.rand(e, generator=rng) + 0.5,
        "pseudo": torch.rand(e, 3, generator=rng),
        "edge_type": torch.randint(TYPES, (e,), generator=rng),
        "node_type": torch.randint(TYPES, (n,), generator=rng),
        "cluster": torch.cat([torch.arange(s) // 2 + MAX_NODES * i for i, s in enumerate(SIZES)]),
        "batch": torch.repeat_interleave(torch.arange(g), torch.tensor(SIZES)),
        "ptr": torch.tensor([0, *torch.tensor(SIZES).cumsum(0).tolist()]),
        "y": normal(g, F),
    }
    slots = {"nodes": n, "edges": e, "graphs": g}
    return Sample(_with_masks(tensors, n, e, g), n, e, g, slots)


def padded_sample(plain: Sample) -> Sample:
    """Return the same graphs followed by filler, laid out as every fixed-size batch is."""
    n, e, g = plain.nodes, plain.edges, plain.graphs
    slots = dict(SLOTS)
    nodes, edges = spread_filler(slots["nodes"] - n, slots["edges"] - e, slots["graphs"] - g)
    begins = torch.tensor([n, *(n + nodes.cumsum(0)[:-1]).tolist()])
    loops = torch.repeat_interleave(begins, torch.from_numpy(edges))
    graph_ids = torch.arange(g, slots["graphs"])
    batch = torch.repeat_interleave(graph_ids, torch.from_numpy(nodes))
    filler = {
        "edge_index": torch.stack([loops, loops]),
        "edge_index2": torch.stack([loops, loops]),
        "batch": batch,
        "cluster": batch * MAX_NODES,
        "ptr": [*begins[1:].tolist(), slots["nodes"]],
    }
    rows = {plain.nodes: slots["nodes"], plain.edges: slots["edges"], plain.graphs: slots["graphs"]}
    tensors = {}
    for name, tensor in plain.tensors.items():
        if name.endswith("_mask"):
            continue
        if name in filler:
            tail = torch.as_tensor(filler[name])
        else:
            value = 0 if tensor.dtype == torch.long else FILLER
            tail = torch.full((rows[len(tensor)] - len(tensor), *tensor.shape[1:]), value)
            tail = tail.to(tensor.dtype)
        tensors[name] = torch.cat([tensor, tail], dim=-1 if "edge_index" in name else 0)
    return Sample(_with_masks(tensors, n, e, g, slots), n, e, g, slots)


def _with_masks(
    tensors: dict[str, Tensor], n: int, e: int, g: int, slots: dict[str, int] | None = None
) -> dict[str, Tensor]:
    slots = slots or {"nodes": n, "edges": e, "graphs": g}
    for name, real in (("node", n), ("edge", e), ("graph", g)):
        tensors[f"{name}_mask"] = torch.arange(slots[f"{name}s"]) < real
    return tensors
