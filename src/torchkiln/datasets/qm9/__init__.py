"""QM9: its files as flat arrays, in the forms that PyG opens, and ready for training."""

from torchkiln.datasets.qm9._arrays import TARGET_COLUMNS, QM9Arrays, qm9_arrays
from torchkiln.datasets.qm9._graphs import qm9_graphs
from torchkiln.datasets.qm9._load import load_qm9, qm9_molecules
from torchkiln.datasets.qm9._root import write_qm9_root
from torchkiln.datasets.qm9._targets import QM9_TARGETS

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
