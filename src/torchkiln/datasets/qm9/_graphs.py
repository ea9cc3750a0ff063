"""QM9 as graphs with the attributes of `torch_geometric.datasets.QM9`, from the tables alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from torchkiln.datasets.qm9._arrays import qm9_arrays
from torchkiln.datasets.qm9._pyg import collated

if TYPE_CHECKING:
    from torchkiln.graphs import GraphStore


def qm9_graphs(
    source: Path | None = None, *, limit: int | None = None, progress: bool = True
) -> GraphStore:
    """Return the molecules of QM9 with the attributes of PyG's class.

    Those are x, edge_index, edge_attr, y, pos, z and idx: the same numbers in the same units.
    Nothing is unpickled on the way, which PyG's class cannot promise: it falls back to pickle for
    files that hold more than tensors.

    Args:
        source: Folder with the tables of qm9pack; default: that of the installed package.
        limit: Only the first molecules.
        progress: Whether to show a progress bar while tables are read, the first time.

    Raises:
        StoreError: if the tables are missing or damaged.
    """
    from torchkiln.graphs import GraphStore

    arrays = qm9_arrays(source, progress=progress)
    if limit is not None:
        arrays = arrays.first(min(limit, len(arrays)))
    values, slices = collated(arrays)
    tensors = {name: value.numpy() for name, value in values.items() if name != "name"}
    return GraphStore.from_arrays(
        node_offsets=slices["x"].numpy(),
        edge_offsets=slices["edge_index"].numpy(),
        node={name: tensors[name] for name in ("x", "pos", "z")},
        edge={name: tensors[name] for name in ("edge_index", "edge_attr")},
        # One row for each graph, as PyG has it: batches are [num_graphs, 19].
        graph={"y": tensors["y"][:, None], "idx": tensors["idx"][:, None]},
    )
