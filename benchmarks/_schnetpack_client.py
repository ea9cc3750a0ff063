"""SchNetPack as a contender: it lives in an environment of its own, so in another process."""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from _schnet_rounds import Contender
from torch import Tensor

from torchkiln.datasets import MoleculeSet, directed_edges

CHILD = Path(__file__).with_name("_schnetpack_child.py")


class SchNetPackContender(Contender):
    """Tells the child to work, and reads what it did."""

    def __init__(
        self,
        name: str,
        python: Path,
        dataset: MoleculeSet,
        arguments: dict[str, Any],
        weights: dict[str, Tensor],
        **settings: Any,
    ) -> None:
        super().__init__(name, [], lambda batch: (0, 0.0))
        self._folder = tempfile.TemporaryDirectory(prefix="torchkiln-schnetpack-")
        folder = Path(self._folder.name)
        np.savez(folder / "molecules.npz", **_arrays(dataset))
        np.savez(folder / "weights.npz", **{key: value.numpy() for key, value in weights.items()})
        (folder / "settings.json").write_text(json.dumps({**settings, "model": arguments}))
        self._child = subprocess.Popen(
            [str(python), str(CHILD), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, seconds: float) -> float:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write(f"{seconds}\n")
        self._child.stdin.flush()
        answer = self._child.stdout.readline()
        if not answer:
            raise RuntimeError(f"SchNetPack's process ended with code {self._child.wait()}")
        done = json.loads(answer)
        for count, loss in done["steps"]:
            self.curve.add(count, loss)
        return sum(count for count, _ in done["steps"]) / done["seconds"]

    def close(self) -> None:
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child.wait(timeout=30)
        self._folder.cleanup()


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
