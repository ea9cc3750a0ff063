"""The warning for a program whose loss counts the filler of a fixed-size batch.

A loss leaves filler out if it depends on a mask of the batch. It also does so if filler carries
labels that the loss ignores, if the last rows are cut off, or if forward finds filler by comparing
labels with something. Where nothing of that is the case, and the batch has filler, the program is
told how to be rewritten. In doubt it is silent: a tensor that the caller made may be a mask.

Importing this module registers the review with `torchkiln.core`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from torchkiln.core import LossInputs, add_loss_review
from torchkiln.graphs._padding_seen import graph_mask_of, is_padded, padding_seen

# Torchkiln's names of masks, and those of PopTorch Geometric.
_GRAPH_MASKS = frozenset({"graph_mask", "graphs_mask"})
_MASKS = _GRAPH_MASKS | {"node_mask", "edge_mask", "nodes_mask", "edges_mask"}
_LABELS = re.compile(r"(^|_)(y|targets?|labels?)$")
# What weighs rows in a loss and is 0 for filler; weights of edges are a part of the model.
_WEIGHTS = re.compile(r"(^|_)(weights?|mask)$")
# What models take in; comparing it says nothing about labels.
_FEATURES = frozenset({"x", "z", "pos", "batch", "ptr", "time", "tree", "n_id"})
_MASKED = {
    "binary_cross_entropy_with_logits",
    "cross_entropy",
    "huber_loss",
    "l1_loss",
    "mse_loss",
    "smooth_l1_loss",
}


def review_filler(names: Sequence[str], tensors: Sequence[Tensor], told: LossInputs) -> str | None:
    """Return the warning if the loss counts filler; arguments as `core`'s `LossReview`."""
    batch = _Batch(names, tensors, told)
    if not batch.carries_filler() or batch.is_masked():
        return None
    return batch.describe()


class _Batch:
    """The tensors of a call, by the last part of their names."""

    def __init__(self, names: Sequence[str], tensors: Sequence[Tensor], told: LossInputs) -> None:
        self._names = [re.findall(r"\w+", name)[-1] for name in names]
        self._tensors = tensors
        self._told = told
        # Graphs of several types have several of a name.
        self._masks = [
            (name, tensor)
            for name, tensor in zip(self._names, tensors, strict=True)
            if name in _MASKS and tensor.dtype is torch.bool
        ]

    def carries_filler(self) -> bool:
        """Whether the tensors are those of a fixed-size batch, without a doubt."""
        unknown = [name for name, tensor in self._reaching() if not self._is_known(name, tensor)]
        padded = any(is_padded(tensor) for _, tensor in self._reaching())
        if padded:
            return not unknown
        # They were copied, to another device perhaps; names are all that is left.
        if any(name in _GRAPH_MASKS for name, _ in self._masks):
            return True
        return bool(self._masks) and padding_seen()

    def is_masked(self) -> bool:
        """Whether the loss leaves filler out, one way or another."""
        return (
            not self._told.uncut
            or any(_may_be_mask(name, tensor) for name, tensor in self._reaching())
            or any(self._is_label(number) for number in self._told.compared)
            or any(self._holds(number, label) for number, label in self._told.ignored)
        )

    def describe(self) -> str:
        mask = self._fitting_mask()
        given = "" if self._masks else f" Pass batch.{mask} to forward."
        function = next((name for name in self._told.functions if name in _MASKED), None)
        if function is None:
            rewrite = (
                f"Weigh each row by batch.{mask}, as the masked losses of torchkiln.graphs do: "
                f"masked_mse_loss(input, target, batch.{mask})"
            )
        else:
            rewrite = (
                f"Instead of F.{function}(input, target), write "
                f"torchkiln.graphs.masked_{function}(input, target, batch.{mask})"
            )
        if function == "cross_entropy" and mask in ("graph_mask", "node_mask", "edge_mask"):
            # PopTorch Geometric, whose masks have other names, has no pad value for one attribute.
            rewrite += (
                "; or give filler a class that the loss ignores: "
                "pad=PadValues(attributes={'y': -100})"
            )
        return (
            "the loss of this program counts filler: no mask of the fixed-size batch reaches it, "
            f"so it differs from the loss of the real graphs.{given} {rewrite} (docs/graphs.md, "
            "'Losses over padded batches')"
        )

    def _reaching(self) -> Iterator[tuple[str, Tensor]]:
        for number in sorted(self._told.reaching):
            if self._tensors[number].dim():
                yield self._names[number], self._tensors[number]

    def _is_known(self, name: str, tensor: Tensor) -> bool:
        # Labels are often converted on the way: y.float().
        return is_padded(tensor) or _LABELS.search(name) is not None

    def _is_label(self, number: int) -> bool:
        name = self._names[number]
        return name not in _FEATURES and "edge" not in name

    def _holds(self, number: int, label: int) -> bool:
        """Whether filler carries this label; the last row of a batch is always filler."""
        tensor = self._tensors[number]
        return bool(tensor.dim() and (tensor[-1] == label).all())

    def _fitting_mask(self) -> str:
        """Return the name of the mask that has as many entries as there are labels."""
        labels = [t for name, t in self._reaching() if _LABELS.search(name)]
        fitting = [name for name, mask in self._masks if labels and len(labels[0]) == len(mask)]
        graphs = [name for name, _ in self._masks if name in _GRAPH_MASKS]
        order = [*_GRAPH_MASKS, "node_mask", "nodes_mask"]  # labels of edges are rare
        fitting.sort(key=lambda name: name not in order)
        known = [name for _, t in self._reaching() if (name := graph_mask_of(t)) is not None]
        return next(iter([*fitting, *graphs, *known]), "graph_mask")


def _may_be_mask(name: str, tensor: Tensor) -> bool:
    if tensor.dtype is torch.bool:
        return True
    is_weight = _WEIGHTS.search(name) is not None and "edge" not in name
    return is_weight and not tensor[-1].any()


add_loss_review(review_filler)
