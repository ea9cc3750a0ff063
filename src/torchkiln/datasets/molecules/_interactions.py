"""Interaction graphs: which atoms of a molecule exchange messages, and how far apart they are."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from torchkiln.core import OptionsError
from torchkiln.core._progress import progress_bar
from torchkiln.datasets.molecules._molecules import Molecules, to_offsets

if TYPE_CHECKING:
    from torch import Tensor

# Large enough that handing a piece of work to a thread costs nothing, small enough for a bar.
_ATOMS_PER_PIECE = 100_000
_MAX_THREADS = 8
# Values of `edge_ways`: who hears whom.
FORTH, BACK = 1, 2


@dataclass(frozen=True, slots=True, eq=False)
class InteractionPairs:
    """Unordered pairs of atoms that interact, each once, molecule after molecule.

    Attributes:
        offsets: Where the pairs of each molecule begin and end, [num_molecules + 1].
        edge_index: Both atoms of each pair, counted within the molecule, the smaller first, in
            lexicographic order; int64 [2, num_pairs].
        edge_weight: Distances in angstrom, computed in float64 and rounded once; float32.
        edge_ways: Which messages pass: 1 from the smaller to the larger index, 2 from the larger
            to the smaller, 3 both; uint8.
    """

    offsets: NDArray[np.int64]
    edge_index: NDArray[np.int64]
    edge_weight: NDArray[np.float32]
    edge_ways: NDArray[np.uint8]


def interaction_pairs(
    molecules: Molecules,
    *,
    k: int | None = None,
    cutoff_angstrom: float = 10.0,
    progress: bool = False,
) -> InteractionPairs:
    """Return the interaction graph of every molecule.

    An atom hears its `k` nearest neighbours among those at most `cutoff_angstrom` away; of several
    that are equally far, those with the lower index. A limit `k` makes graphs one-sided: an atom
    may hear another that does not hear it. Distances are compared in float64, as squares.

    Args:
        molecules: Whose atoms interact; never those of different molecules.
        k: How many neighbours an atom hears at most; None: all within the cutoff.
        cutoff_angstrom: How far away they may be; one just at the cutoff counts.
        progress: Draw a progress bar.

    Raises:
        OptionsError: if `k` or the cutoff is not positive.
    """
    if k is not None and (isinstance(k, bool) or not isinstance(k, int) or k < 1):
        raise OptionsError(f"k must be a number of neighbours, at least 1, or None; got {k!r}")
    if not 0 < cutoff_angstrom < np.inf:
        raise OptionsError(f"cutoff_angstrom must be a positive length, got {cutoff_angstrom!r}")
    from torchkiln.datasets.molecules import _interaction_kernels as kernels

    pos, offsets = molecules.pos, molecules.offsets
    square = float(cutoff_angstrom) ** 2
    # Whoever has no more than k others hears all of them, and nothing has to be sorted.
    limited = k is not None and len(molecules) > 0 and k < int(molecules.num_atoms.max()) - 1
    limits = np.empty(len(pos) if limited else 0)
    last = np.empty(len(limits), dtype=np.int64)
    counts = np.empty(len(molecules), dtype=np.int64)

    def count(begin: int, end: int) -> None:
        if limited:
            kernels.find_limits(pos, offsets, begin, end, k, square, limits, last)
        kernels.count_pairs(pos, offsets, begin, end, square, limits, last, counts)

    def fill(begin: int, end: int) -> None:
        results = (pairs.offsets, pairs.edge_index, pairs.edge_weight, pairs.edge_ways)
        kernels.fill_pairs(pos, offsets, begin, end, square, limits, last, *results)

    with _workers(offsets, progress) as run:
        run(count)
        pairs = _room_for(counts)
        run(fill)
    return pairs


def _room_for(counts: NDArray[np.int64]) -> InteractionPairs:
    offsets = to_offsets(counts)
    total = int(offsets[-1])
    return InteractionPairs(
        offsets,
        np.empty((2, total), dtype=np.int64),
        np.empty(total, dtype=np.float32),
        np.empty(total, dtype=np.uint8),
    )


@contextlib.contextmanager
def _workers(
    offsets: NDArray[np.int64], progress: bool
) -> Iterator[Callable[[Callable[[int, int], None]], None]]:
    """Yield a function that calls another with ranges of molecules, twice over all of them.

    In threads, for kernels release Python's lock. Not in Numba's: those do not survive a fork, and
    loaders fork.
    """
    steps = np.arange(0, offsets[-1] + _ATOMS_PER_PIECE, _ATOMS_PER_PIECE)
    cuts = np.unique(np.minimum(np.searchsorted(offsets, steps), len(offsets) - 1)).tolist()
    threads = min(len(os.sched_getaffinity(0)), _MAX_THREADS, max(len(cuts) - 1, 1))
    finished = 0
    with (
        progress_bar(
            total=len(offsets) - 1,
            desc="Interaction graphs",
            unit=" molecules",
            show=progress,
        ) as bar,
        ThreadPoolExecutor(threads) as pool,
    ):

        def run(work: Callable[[int, int], None]) -> None:
            nonlocal finished
            for (begin, end), _ in zip(
                pairwise(cuts), pool.map(work, cuts[:-1], cuts[1:]), strict=True
            ):
                finished += end - begin
                bar.update(finished // 2 - bar.n)

        yield run


def directed_edges(
    edge_index: Tensor, edge_weight: Tensor, edge_ways: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the ordinary form of PyG: one edge for each message, from row 0 to row 1.

    Edges are sorted by target, then source. Takes one molecule or a batch; filler vanishes, so the
    size depends on the data: for preprocessing and comparisons, not for programs.

    Returns:
        `edge_index` [2, num_edges] and `edge_weight` [num_edges].
    """
    import torch

    forth, back = (edge_ways & FORTH) > 0, (edge_ways & BACK) > 0
    both = torch.cat([edge_index[:, forth], edge_index[:, back].flip(0)], dim=1)
    weight = torch.cat([edge_weight[forth], edge_weight[back]])
    size = int(both.max()) + 1 if both.numel() else 1
    order: Any = (both[1] * size + both[0]).argsort()
    return both[:, order], weight[order]
