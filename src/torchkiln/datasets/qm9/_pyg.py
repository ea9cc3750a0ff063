"""QM9 in the forms that `torch_geometric.datasets.QM9` opens without RDKit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from torchkiln.datasets.qm9._arrays import QM9Arrays

if TYPE_CHECKING:
    import torch

_ELEMENTS = np.array([1, 6, 7, 8, 9])
_NUM_BOND_TYPES = 4  # single, double, triple; aromatic, which a Kekulé form never has


def directed_edges(arrays: QM9Arrays) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return edges [2, num_edges] within each molecule, by source and target, and their types."""
    ends = arrays.bond_ends.astype(np.int64)
    edges = np.concatenate([ends, ends[:, ::-1]])
    types = np.tile(arrays.bond_orders.astype(np.int64) - 1, 2)
    molecule = np.tile(np.repeat(np.arange(len(arrays)), arrays.num_bonds), 2)
    order = np.lexsort((edges[:, 1], edges[:, 0], molecule))
    return np.ascontiguousarray(edges[order].T), types[order]


def node_features(arrays: QM9Arrays) -> NDArray[np.float32]:
    """Return the eleven features that PyG computes for each atom.

    Element (one of H, C, N, O, F), atomic number, aromatic, sp, sp2, sp3, attached hydrogens. PyG
    does not sanitise the molecules, so that RDKit knows neither aromaticity nor hybridisation
    and these four columns are zero.
    """
    start = np.repeat(arrays.offsets[:-1], arrays.num_bonds)
    first, second = (arrays.bond_ends[:, side] + start for side in (0, 1))
    hydrogens = np.bincount(first[arrays.z[second] == 1], minlength=len(arrays.z))
    hydrogens += np.bincount(second[arrays.z[first] == 1], minlength=len(arrays.z))
    features = np.zeros((len(arrays.z), 11), dtype=np.float32)
    features[:, :5] = arrays.z[:, None] == _ELEMENTS
    features[:, 5] = arrays.z
    features[:, 10] = hydrogens
    return features


def collated(arrays: QM9Arrays) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Return the attributes of all molecules in PyG's order, and where each molecule's lie."""
    import torch

    edge_index, edge_type = directed_edges(arrays)
    edge_attr = np.eye(_NUM_BOND_TYPES, dtype=np.float32)[edge_type]
    values: dict[str, Any] = {
        "x": torch.from_numpy(node_features(arrays)),
        "edge_index": torch.from_numpy(edge_index),
        "edge_attr": torch.from_numpy(edge_attr),
        "y": torch.from_numpy(arrays.y),
        "pos": torch.from_numpy(arrays.pos.astype(np.float32)),
        "idx": torch.from_numpy(arrays.index - 1),
        "name": [f"gdb_{index}" for index in arrays.index.tolist()],
        "z": torch.from_numpy(arrays.z.astype(np.int64)),
    }
    nodes = torch.from_numpy(arrays.offsets.copy())
    edges = torch.from_numpy(2 * arrays.bond_offsets)
    graphs = torch.arange(len(arrays) + 1)
    axes = {"edge_index": edges, "edge_attr": edges, "y": graphs, "idx": graphs, "name": graphs}
    return values, {name: axes.get(name, nodes) for name in values}


def write_processed(arrays: QM9Arrays, path: Path) -> None:
    """Write processed/data_v3.pt, which the class opens at once."""
    import torch
    from torch_geometric.data import Data

    values, slices = collated(arrays)
    with path.open("wb") as file:  # given a path, torch writes its name into the file
        torch.save((values, slices, Data), file)


def write_list_of_dicts(arrays: QM9Arrays, path: Path) -> None:
    """Write raw/qm9_v3.pt, from which the class starts again (pre_transform, force_reload).

    The tensors of a molecule are views of those of all molecules, which are saved once. PyG needs
    about a minute to read 800,000 of them back.
    """
    import torch

    from torchkiln.datasets.qm9 import _view_pickle

    values, slices = collated(arrays)
    # A plain number, as the class has it when it reads gdb9.sdf.
    values["idx"] = values["idx"].tolist()
    pieces = {name: _pieces(value, slices[name].tolist(), name) for name, value in values.items()}
    molecules = [
        dict(zip(pieces, parts, strict=True)) for parts in zip(*pieces.values(), strict=True)
    ]
    with path.open("wb") as file:
        torch.save(molecules, file, pickle_module=_view_pickle)


def _pieces(value: Any, bounds: list[int], name: str) -> list[Any]:
    if isinstance(value, list):
        return value
    return list(value.split(np.diff(bounds).tolist(), dim=1 if name == "edge_index" else 0))
