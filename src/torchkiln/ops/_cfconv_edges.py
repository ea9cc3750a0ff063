"""What the operators of `cfconv` are given: who sends to whom, and where filters come from."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from torchkiln.core import ArgumentError
from torchkiln.ops._define import define_operator

_MAX_SHOWN = 20


class Edges(NamedTuple):
    """Who sends to whom: as the arguments of `cfconv`; `reverse` turns all messages round."""

    edge_index: Tensor
    batch: Tensor
    ways: Tensor | None
    reverse: bool


class Places(NamedTuple):
    """Where edges look into a table, which derivative of it they take, and times what."""

    distances: Tensor
    scale: Tensor | None
    num_knots: int
    spacing: float
    order: int


@define_operator("cfconv_check")
def check_edges(edge_index: Tensor, batch: Tensor) -> None:
    """Check what the kernels check while they run.

    Raises:
        ArgumentError: if edges leave their molecule, the nodes, or the order of molecules.
    """
    if bool((batch[1:] < batch[:-1]).any()) or bool((batch < 0).any()):
        raise ArgumentError(
            f"batch must be ascending from 0, as nodes are grouped by molecule, got "
            f"{batch[:_MAX_SHOWN].tolist()}{'...' if len(batch) > _MAX_SHOWN else ''}; sort nodes"
        )
    outside = ((edge_index < 0) | (edge_index >= len(batch))).any(0)
    molecules = batch[edge_index.clamp(0, max(len(batch) - 1, 0))] if len(batch) else edge_index
    first, second = molecules
    wrong = outside | (first != second)
    wrong[1:] |= first[1:] < first[:-1]
    if bool(wrong.any()):
        raise ArgumentError(_complaint(int(wrong.int().argmax()), edge_index, batch))


def _complaint(edge: int, edge_index: Tensor, batch: Tensor) -> str:
    first, second = edge_index[:, edge].tolist()
    if not (0 <= first < len(batch) and 0 <= second < len(batch)):
        return (
            f"edge {edge} joins nodes {first} and {second}, but there are {len(batch)} nodes; "
            f"edge_index must count nodes of the batch from 0"
        )
    molecules = int(batch[first]), int(batch[second])
    if molecules[0] != molecules[1]:
        return (
            f"edge {edge} joins node {first} of molecule {molecules[0]} to node {second} of "
            f"molecule {molecules[1]}; edges must stay within a molecule: check `batch`, or add "
            f"the node offsets of the batch to edge_index"
        )
    return (
        f"edge {edge} belongs to molecule {molecules[0]}, but stands after edges of a later one; "
        f"edges must be grouped by molecule, in the order of `batch`: sort them with "
        f"edge_index[:, batch[edge_index[0]].argsort(stable=True)] (and what belongs to them)"
    )
