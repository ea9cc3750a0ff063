"""The size of a mini-batch, and loaders of the three splits that all use it."""

from __future__ import annotations

import numpy as np

from torchkiln.apps.schnet._settings import DatasetSettings
from torchkiln.core import Options, OptionsError
from torchkiln.datasets import MoleculeSet
from torchkiln.graphs import BatchSpec, FixedSizeLoader
from torchkiln.packing import choose_slots


def batch_spec(dataset: MoleculeSet, settings: DatasetSettings) -> BatchSpec:
    """Return the sizes that every mini-batch has, for all splits.

    Packed, a mini-batch has the node slots of `batch_size` packs. Unless `max_num_atoms` says
    otherwise, a pack is as large as the largest molecule: so packed and padded batches have the
    same number of node slots, and the packed ones hold as many more molecules as padding wastes.
    The packs of a mini-batch are filled as one, since nothing in the model stops at the border of
    a pack: 12 x 29 slots filled together have fewer holes than twelve of 29. Slots for pairs of
    atoms follow from a plan on a sample of the molecules.

    Raises:
        OptionsError: `max_num_atoms` is smaller than the largest molecule.
    """
    sizes = {"nodes": dataset.store.sizes["nodes"], "edges": dataset.store.sizes["edges"]}
    largest = _require_room(dataset, settings.max_num_atoms)
    atoms = settings.batch_size * (settings.max_num_atoms or largest)
    nodes = atoms + 1  # one node always stays filler
    if not settings.use_packing:
        pairs = settings.batch_size * int(sizes["edges"].max())
        return BatchSpec(nodes, pairs + 1, settings.batch_size + 1)
    if settings.max_num_atoms is None:
        slots = choose_slots(sizes, nodes=nodes)
    else:
        slots = choose_slots(sizes, slots={"nodes": nodes})
    return BatchSpec(slots["nodes"], slots["edges"], slots["graphs"])


def make_loader(
    dataset: MoleculeSet,
    split: str,
    spec: BatchSpec,
    *,
    options: Options,
    settings: DatasetSettings,
    shuffle: bool = False,
    seed: int = 0,
    num_workers: int = 0,
) -> FixedSizeLoader:
    """Return a loader of one split, in mini-batches of `spec`."""
    return FixedSizeLoader(
        dataset.store[dataset.splits[split]],
        spec,
        options=options,
        strategy="packed" if settings.use_packing else "padded",
        batch_size=None if settings.use_packing else settings.batch_size,
        shuffle=shuffle,
        seed=seed,
        as_tensors=True,
        num_workers=num_workers,
    )


def _require_room(dataset: MoleculeSet, max_num_atoms: int | None) -> int:
    """Return the size of the largest molecule."""
    molecules = dataset.molecules
    largest = int(np.argmax(molecules.num_atoms))
    num_atoms = int(molecules.num_atoms[largest])
    if max_num_atoms is not None and num_atoms > max_num_atoms:
        name = f" ({molecules.names[largest]})" if molecules.names is not None else ""
        raise OptionsError(
            f"molecule {largest}{name} has {num_atoms} atoms, but max_num_atoms is "
            f"{max_num_atoms}; pass at least {num_atoms}, or leave it out"
        )
    return num_atoms
