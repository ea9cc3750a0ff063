"""QM9: its files as flat arrays, in the forms that PyG opens, and ready for training."""

from torchkiln.datasets.molecules._published_targets import QM9_TARGETS, TARGET_COLUMNS
from torchkiln.datasets.qm9._arrays import QM9Arrays, qm9_arrays
from torchkiln.datasets.qm9._graphs import qm9_graphs
from torchkiln.datasets.qm9._load import load_qm9, qm9_molecules
from torchkiln.datasets.qm9._root import write_qm9_root

__all__ = [
    "QM9Arrays",
    "QM9_TARGETS",
    "TARGET_COLUMNS",
    "load_qm9",
    "qm9_arrays",
    "qm9_graphs",
    "qm9_molecules",
    "write_qm9_root",
]
