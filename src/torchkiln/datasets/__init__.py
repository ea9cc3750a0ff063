"""Real datasets from offline sources: their files, as flat arrays, and in the forms PyG opens."""

from torchkiln.datasets._qm9 import TARGET_COLUMNS, QM9Arrays, qm9_arrays
from torchkiln.datasets._qm9_root import write_qm9_root
from torchkiln.datasets._sizes import load_sizes

__all__ = [
    "QM9Arrays",
    "TARGET_COLUMNS",
    "load_sizes",
    "qm9_arrays",
    "write_qm9_root",
]
