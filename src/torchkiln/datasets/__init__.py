"""Real datasets from offline sources: their files, as flat arrays, and in the forms PyG opens."""

from torchkiln.datasets._sizes import load_sizes
from torchkiln.datasets._view import view
from torchkiln.datasets.files._read import read_molecules
from torchkiln.datasets.files._sample import sample_molecules
from torchkiln.datasets.files._write import write_extxyz
from torchkiln.datasets.molecules._interactions import (
    InteractionPairs,
    directed_edges,
    interaction_pairs,
)
from torchkiln.datasets.molecules._molecule_set import (
    MoleculeSet,
    make_molecule_set,
    molecule_store,
)
from torchkiln.datasets.molecules._molecules import Molecules
from torchkiln.datasets.molecules._splits import split_indices
from torchkiln.datasets.molecules._targets import TargetTransform, element_baseline
from torchkiln.datasets.qm9 import (
    QM9_TARGETS,
    TARGET_COLUMNS,
    QM9Arrays,
    load_qm9,
    qm9_arrays,
    qm9_graphs,
    qm9_molecules,
    write_qm9_root,
)

__all__ = [
    # molecules and what is made of them for training
    "InteractionPairs",
    "MoleculeSet",
    "Molecules",
    "TargetTransform",
    "directed_edges",
    "element_baseline",
    "interaction_pairs",
    "make_molecule_set",
    "molecule_store",
    "read_molecules",
    "sample_molecules",
    "split_indices",
    "view",
    "write_extxyz",
    # QM9
    "QM9Arrays",
    "QM9_TARGETS",
    "TARGET_COLUMNS",
    "load_qm9",
    "qm9_arrays",
    "qm9_graphs",
    "qm9_molecules",
    "write_qm9_root",
    # what packing needs
    "load_sizes",
]
