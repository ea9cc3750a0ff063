"""What the loaders over one large graph share: who gets which part of it, and its fixed size."""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchkiln.core import Options, OptionsError
from torchkiln.graphs._errors import GraphError
from torchkiln.graphs._levels import FoundLevels, count, find_level, is_hetero, stores_of
from torchkiln.graphs._spec import BatchSpec, PadValues
from torchkiln.graphs.batches._pad import pad_batch
from torchkiln.graphs.loaders._dealing import Dealing

Indices = NDArray[np.int64]
Sizes = tuple[dict[Any, int], dict[Any, int]]  # nodes and edges by type

# How much larger than the largest batch seen so far an automatic spec is. Sizes of samples hardly
# vary, and what is still too large is trimmed.
MARGIN = 0.05


class Group(NamedTuple):
    """What makes one mini-batch: some clusters, or some seed nodes; none at all is filler only."""

    epoch: int
    number: int  # among all mini-batches of the epoch, over all processes
    elements: Indices


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """Divides elements into mini-batches, and these among processes: `plan(epoch)`.

    Every element comes once in an epoch, over all processes. What is missing to full combined
    batches, as many in each process, is made up by mini-batches of filler only. The order of all
    mini-batches is a function of `(seed, epoch)`. Processes that share their updates are dealt
    theirs as `Dealing` says; others get whole combined batches in turn.
    """

    num_elements: int
    group_size: int
    options: Options
    seed: int
    shuffle: bool

    def __post_init__(self) -> None:
        if self.num_elements < 1:
            raise OptionsError("there is nothing to load: no cluster or input node was given")
        if self.group_size < 1:
            raise OptionsError(
                f"a batch needs at least one cluster or seed node, got {self.group_size}"
            )

    def __call__(self, epoch: int) -> list[tuple[Group, ...]]:
        order = np.arange(self.num_elements)
        if self.shuffle:
            order = np.random.default_rng((self.seed % 2**64, epoch)).permutation(order)
        factor, world = self.options.combined_factor, self.options.num_pipelines
        at_once = Dealing(self.options).inputs if self.options.synchronizes else factor
        num_groups = -(-self.num_elements // self.group_size)
        length = factor * -(-num_groups // (factor * world))
        turns, places = np.divmod(np.arange(length), at_once)
        numbers = (turns * world + self.options.pipeline_id) * at_once + places
        groups = [
            Group(epoch, i, order[i * self.group_size : (i + 1) * self.group_size])
            for i in numbers.tolist()
        ]
        return [tuple(groups[first : first + factor]) for first in range(0, length, factor)]

    def identity(self, data: Any, elements: Indices, spec: BatchSpec) -> dict[str, Any]:
        """Return what the mini-batches depend on, to be compared when a loader is resumed.

        Args:
            data: The whole graph, of which the sizes are compared.
            elements: What stands behind the elements: clusters of nodes, or input nodes.
            spec: Sizes of the batches.
        """
        return {
            "elements": hashlib.blake2b(elements.tobytes(), digest_size=8).hexdigest(),
            "spec": repr(spec),
            "num_elements": self.num_elements,
            "group_size": self.group_size,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "graph": describe_size(data),
        }


@dataclass(frozen=True, slots=True)
class Finish:
    """Makes a sub-graph a batch of fixed size: the sub-graph and one graph of filler.

    Args:
        spec: Sizes of the batch.
        like: A sub-graph that a batch without any imitates.
        levels: What each attribute of the sub-graphs belongs to.
        pad: What filler holds.
        masks: Whether masks are added.
        trim: Whether what is too large is cut down; it is an error otherwise.
        exclude_keys: Attributes to leave out.
    """

    spec: BatchSpec
    like: Any
    levels: FoundLevels
    pad: PadValues = field(default_factory=PadValues)
    masks: bool = True
    trim: bool = True
    exclude_keys: tuple[str, ...] = ()

    def __call__(
        self, graph: Any, stream: int, protected_nodes: int | Mapping[str, int] = 0
    ) -> Any:
        """Return the padded batch of `graph`; None gives filler only.

        Args:
            graph: The sub-graph.
            stream: Decides what is trimmed.
            protected_nodes: So many first nodes (by type) are never trimmed.
        """
        return pad_batch(
            [] if graph is None else [graph],
            self.spec,
            pad=self.pad,
            masks=self.masks,
            trim_nodes=self.trim,
            trim_edges=self.trim,
            protected_nodes=protected_nodes,
            levels=self.levels,
            exclude_keys=self.exclude_keys,
            like=self.like,
            generator=torch.Generator().manual_seed(stream),
        )


def to_trim(oversize: str) -> bool:
    """Return whether batches that are too large are trimmed."""
    if oversize not in ("trim", "error"):
        raise OptionsError(f"oversize must be 'trim' or 'error', got {oversize!r}")
    return oversize == "trim"


def require_one_real_graph(spec: BatchSpec) -> BatchSpec:
    if spec.num_graphs != 2:
        raise OptionsError(
            f"num_graphs is {spec.num_graphs}; a batch of a large graph holds one sub-graph and "
            "one graph of filler: num_graphs=2"
        )
    return spec


def estimate_spec(sizes: Iterable[Sizes], whole: Any, *, margin: float = MARGIN) -> BatchSpec:
    """Return a spec for sub-graphs like those measured: the largest sizes and a margin.

    Args:
        sizes: Of some sub-graphs; at least one.
        whole: The graph that they are part of, which limits what a margin is good for.
        margin: Share of the largest sizes that is added.
    """
    seen = list(sizes)
    limits = measure(whole)
    nodes, edges = (
        {
            # Copies of a node in disjoint samples may exceed the whole; what was seen must fit.
            key: max(most, min(limits[level][key], math.ceil(most * (1 + margin))), 1)
            for key in seen[0][level]
            for most in [max(size[level][key] for size in seen)]
        }
        for level in (0, 1)
    )
    nodes = {key: size + 1 for key, size in nodes.items()}  # one stays filler
    if is_hetero(whole):
        return BatchSpec(num_nodes=nodes, num_edges=edges, num_graphs=2)
    return BatchSpec(num_nodes=nodes[None], num_edges=edges[None], num_graphs=2)


def find_data_levels(data: Any, more: Mapping[str, str]) -> FoundLevels:
    """Return the level of each tensor of a large graph, which in a small part could be ambiguous.

    Args:
        data: The whole graph; None if it is kept in a store that does not tell.
        more: Levels of what sampling adds.
    """
    if data is None or is_hetero(data):  # typed stores are never ambiguous
        return FoundLevels()
    census = count([data])
    levels = FoundLevels()
    for name, value in data.items():
        if isinstance(value, Tensor) and value.layout is torch.strided:
            # What even the whole graph leaves in doubt is decided by its parts.
            with contextlib.suppress(GraphError):
                levels[name] = find_level([data], census, None, name, value).value
    levels.update(more)
    return levels


def describe_size(data: Any) -> list[list[Any]]:
    """Return sizes of a graph in plain types."""
    nodes, edges = measure(data)
    return [
        [key if isinstance(key, str) else list(key or ()), size]
        for key, size in [*nodes.items(), *edges.items()]
    ]


def measure(graph: Any) -> Sizes:
    """Return the sizes of a graph by type; the type of homogeneous graphs is None."""
    if not is_hetero(graph):
        return {None: int(graph.num_nodes)}, {None: int(graph.num_edges)}
    nodes = {key: int(store.num_nodes) for key, store in stores_of(graph) if isinstance(key, str)}
    edges = {key: int(store.num_edges) for key, store in stores_of(graph) if isinstance(key, tuple)}
    return nodes, edges
