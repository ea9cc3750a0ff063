"""SchNetPack as a contender: it lives in an environment of its own, so in another process."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from _schnet_child_contender import ChildContender
from torch import Tensor

from torchkiln.datasets import MoleculeSet, directed_edges

CHILD = Path(__file__).with_name("_schnetpack_child.py")


class SchNetPackContender(ChildContender):
    """Hands molecules and weights to a child that has SchNetPack."""

    def __init__(
        self,
        name: str,
        python: Path,
        dataset: MoleculeSet,
        arguments: dict[str, Any],
        weights: dict[str, Tensor],
        **settings: Any,
    ) -> None:
        directory = tempfile.TemporaryDirectory(prefix="torchkiln-schnetpack-")
        folder = Path(directory.name)
        np.savez(folder / "molecules.npz", **_arrays(dataset))
        np.savez(folder / "weights.npz", **{key: value.numpy() for key, value in weights.items()})
        (folder / "settings.json").write_text(json.dumps({**settings, "model": arguments}))
        super().__init__(name, python, CHILD, directory)


def _arrays(dataset: MoleculeSet) -> dict[str, Any]:
    edges, counts = [], []
    for graph in dataset.store:
        edge_index, _ = directed_edges(graph.edge_index, graph.edge_weight, graph.edge_ways)
        edges.append(edge_index.numpy())
        counts.append(edge_index.shape[1])
    molecules = dataset.molecules
    return {
        "offsets": molecules.offsets,
        "z": molecules.z.astype(np.int64),
        "pos": molecules.pos.astype(np.float32),
        "y": np.concatenate([graph.y.numpy() for graph in dataset.store]),
        "edge_index": np.concatenate(edges, axis=1),
        "edge_offsets": np.concatenate([[0], np.cumsum(counts)]),
    }
