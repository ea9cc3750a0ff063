"""`MoleculeSet`: molecules with interaction graphs, a target and splits, ready for training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np
from numpy.typing import NDArray

from torchkiln.core import OptionsError, StoreError
from torchkiln.datasets.molecules._interactions import interaction_pairs
from torchkiln.datasets.molecules._molecules import Molecules
from torchkiln.datasets.molecules._published_targets import spell_unit
from torchkiln.datasets.molecules._splits import (
    Splits,
    choose_some,
    names_molecules,
    restrict,
    split_indices,
)
from torchkiln.datasets.molecules._target_kinds import (
    Kind,
    find_kind,
    has_atom_references,
    is_formation_energy,
)
from torchkiln.datasets.molecules._targets import TargetTransform, resolve_target

if TYPE_CHECKING:
    from torchkiln.graphs import GraphStore


@final
@dataclass(frozen=True, slots=True, eq=False)
class MoleculeSet:
    """A dataset for training.

    Attributes:
        name: Of the dataset.
        molecules: What there is, in physical units.
        store: One graph a molecule: `z` int64 [n], `edge_index` int64 [2, p], `edge_weight` float32
            [p], `edge_ways` uint8 [p] (see `InteractionPairs`: unordered pairs), `y` float32 [1]
            (the transformed target) and `index` int64 [1] (which of `molecules`).
        splits: Indices by "train", "validation" and "test"; disjoint, sorted.
        transform: From physical values of the target to `y` and back.
        k: Neighbours that an atom hears at most; None: no limit.
        cutoff_angstrom: How far away they may be.
        kind: Whether the target grows with the size of the molecule ("extensive") or not
            ("intensive"): which readout of a network suits it.
    """

    name: str
    molecules: Molecules
    store: GraphStore
    splits: dict[str, NDArray[np.int64]]
    transform: TargetTransform
    k: int | None
    cutoff_angstrom: float
    kind: Kind = "extensive"

    def __len__(self) -> int:
        return len(self.molecules)

    @property
    def target(self) -> str:
        return self.transform.target

    @property
    def unit(self) -> str:
        """Of the physical values of the target; empty if unknown."""
        return self.transform.unit

    @property
    def values(self) -> NDArray[np.float64]:
        """The target of every molecule in physical units."""
        return self.molecules.targets[self.target]

    def split(self, name: str) -> GraphStore:
        """Return the graphs of one split, as a view of the store."""
        if name not in self.splits:
            raise OptionsError(f"there is no split {name!r}; choose from {', '.join(self.splits)}")
        return self.store[self.splits[name]]

    def restore(self, predictions: Any, index: Any) -> NDArray[np.float64]:
        """Return physical values of what a network predicts for the molecules `index`."""
        some = self.molecules.take(index)
        return self.transform.restore(predictions, some.z, some.offsets)

    def describe(self) -> dict[str, Any]:
        """Return the facts for reports and checkpoints, as plain JSON types."""
        return {
            "name": self.name,
            "source": self.molecules.source,
            "target": self.target,
            "unit": self.unit,
            "molecules": len(self),
            "splits": {name: len(indices) for name, indices in self.splits.items()},
            "elements": self.molecules.elements,
            "k": self.k,
            "cutoff_angstrom": self.cutoff_angstrom,
        }

    def __str__(self) -> str:
        sizes = ", ".join(f"{len(indices):,} {name}" for name, indices in self.splits.items())
        near = f"{self.k} nearest within " if self.k is not None else ""
        return (
            f"{self.name}: {len(self):,} molecules ({sizes})\n"
            f"  target {self.transform}\n"
            f"  {int(self.store.sizes['edges'].sum()):,} pairs ({near}{self.cutoff_angstrom:g} Å)"
        )


def make_molecule_set(
    molecules: Molecules,
    *,
    name: str,
    target: str,
    k: int | None = None,
    cutoff_angstrom: float = 10.0,
    splits: Splits = "80/10/10",
    seed: int = 0,
    references: str = "none",
    per_atom: bool | None = False,
    standardize: bool = False,
    unit: str | None = None,
    limit: int | None = None,
    progress: bool = True,
) -> MoleculeSet:
    """Return `molecules` with interaction graphs, splits and a transformed target.

    Args:
        molecules: What to train on.
        name: Of the dataset, for reports.
        target: Which of their targets.
        k: Neighbours that an atom hears at most; None: no limit (`interaction_pairs`).
        cutoff_angstrom: How far away they may be.
        splits: See `split_indices`.
        seed: Of the split, and of the choice of molecules if there is a limit.
        references: What is subtracted by element; see `TargetTransform.fit`. "auto" follows the
            kind of the target: energies of free atoms where QM9 publishes them, else "fitted" for a
            target that grows with the molecule, and "none" for one that does not.
        per_atom: Divide the target by the number of atoms; None: if it grows with the molecule.
        standardize: Bring mean 0 and standard deviation 1 about, over the training molecules.
        unit: Of the target; default: what `molecules` know about it.
        limit: Take only so many molecules, at random by `seed`, before they are split. Splits from
            a file keep to what they say about those molecules.
        progress: Draw progress bars.

    Raises:
        OptionsError: if the target, the split or another value makes no sense.
        StoreError: if a target is no number, or a file of splits does not fit.
    """
    unit = None if unit is None else spell_unit(unit)
    chosen_target = resolve_target(molecules, target)
    chosen = choose_some(len(molecules), limit, seed=seed)
    if not len(molecules):
        raise StoreError(f"{molecules.source or name} has no molecules")
    some = molecules if len(chosen) == len(molecules) else molecules.take(chosen)
    if names_molecules(splits) and some is not molecules:
        indices = restrict(split_indices(len(molecules), splits), chosen)
    else:
        indices = split_indices(len(some), splits, seed=seed)
    _check_values(some, chosen_target, chosen)
    _check_unit(some, chosen_target, unit)
    kind = find_kind(some, chosen_target, indices["train"])
    if references == "auto":
        references = _suitable_references(some, chosen_target, kind)
    transform = TargetTransform.fit(
        some,
        chosen_target,
        indices["train"],
        references=references,
        per_atom=kind == "extensive" if per_atom is None else per_atom,
        standardize=standardize,
        unit=unit,
    )
    y = transform.apply(some.targets[chosen_target], some.z, some.offsets)
    store = molecule_store(some, k=k, cutoff_angstrom=cutoff_angstrom, y=y, progress=progress)
    return MoleculeSet(name, some, store, indices, transform, k, float(cutoff_angstrom), kind)


def _suitable_references(molecules: Molecules, target: str, kind: Kind) -> str:
    if has_atom_references(molecules, target):
        return "atoms"
    is_free = kind == "intensive" or is_formation_energy(molecules, target)
    return "none" if is_free else "fitted"


def molecule_store(
    molecules: Molecules,
    *,
    k: int | None = None,
    cutoff_angstrom: float = 10.0,
    y: Any = None,
    progress: bool = False,
) -> GraphStore:
    """Return the interaction graphs of molecules as a store; see `MoleculeSet` for attributes.

    Args:
        molecules: One graph each.
        k: Neighbours that an atom hears at most; None: no limit.
        cutoff_angstrom: How far away they may be.
        y: What a network learns, [num_molecules], rounded to float32 here; None: zeros, for
            molecules whose target is to be predicted.
        progress: Draw a progress bar.
    """
    from torchkiln.graphs import GraphStore

    pairs = interaction_pairs(molecules, k=k, cutoff_angstrom=cutoff_angstrom, progress=progress)
    learned = np.zeros(len(molecules)) if y is None else np.asarray(y)
    return GraphStore.from_arrays(
        node_offsets=molecules.offsets,
        edge_offsets=pairs.offsets,
        node={"z": molecules.z.astype(np.int64)},
        edge={
            "edge_index": pairs.edge_index,
            "edge_weight": pairs.edge_weight,
            "edge_ways": pairs.edge_ways,
        },
        graph={
            "y": learned.astype(np.float32)[:, None],
            "index": np.arange(len(molecules))[:, None],
        },
    )


def _check_unit(molecules: Molecules, target: str, unit: str | None) -> None:
    known = molecules.units.get(target)
    if unit is not None and known not in (None, unit):
        raise OptionsError(
            f"unit is {unit!r}, but {target!r} of {molecules.source or 'these molecules'} is in "
            f"{known}; leave the unit out, nothing is converted"
        )


def _check_values(molecules: Molecules, target: str, chosen: NDArray[np.int64]) -> None:
    """Raise if there is none; `chosen` are the places of `molecules` among those of the file."""
    wrong = np.flatnonzero(~np.isfinite(molecules.targets[target]))
    if len(wrong):
        first = int(wrong[np.argmin(chosen[wrong])])
        called = "" if molecules.names is None else f" ({molecules.names[first]})"
        raise StoreError(
            f"{len(wrong)} of {len(molecules)} molecules of {molecules.source or 'the dataset'} "
            f"have no {target!r}, the first is number {chosen[first] + 1:,}{called}; leave them "
            "out, or choose another target"
        )
