"""The molecules whose predictions are farthest off."""

from __future__ import annotations

import numpy as np

from torchkiln.datasets import MoleculeSet
from torchkiln.report import PredictedMolecule, ValidationResult

NUM_WORST = 6
_DECIMALS = 4  # of coordinates in angstrom: enough to look at


def worst_predictions(
    dataset: MoleculeSet, split: str, result: ValidationResult, count: int = NUM_WORST
) -> list[PredictedMolecule]:
    """Return the `count` molecules with the largest errors, the worst first.

    Args:
        dataset: What was predicted.
        split: Which part of it.
        result: Predictions for all molecules of the split, in the order of the dataset. None is
            returned of a result with fewer, since nobody could tell which they are.
        count: How many.
    """
    chosen = np.sort(dataset.splits[split])
    if len(chosen) != len(result.true):
        return []
    errors = np.abs(result.predicted - result.true)
    # A prediction that is no number is as far off as can be.
    order = np.argsort(-np.nan_to_num(errors, nan=np.inf), kind="stable")[:count]
    molecules, names = dataset.molecules, dataset.molecules.names
    worst = []
    for place in order.tolist():
        index = int(chosen[place])
        atoms = slice(int(molecules.offsets[index]), int(molecules.offsets[index + 1]))
        rows = molecules.pos[atoms].round(_DECIMALS).tolist()
        worst.append(
            PredictedMolecule(
                name=f"molecule {index}" if names is None else names[index],
                z=tuple(molecules.z[atoms].tolist()),
                pos=tuple((x, y, depth) for x, y, depth in rows),
                true=float(result.true[place]),
                predicted=float(result.predicted[place]),
            )
        )
    return worst
