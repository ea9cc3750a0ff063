"""What a trained model said about molecules, as a value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from torchkiln.datasets import Molecules


@dataclass(frozen=True, slots=True, eq=False)
class Predictions:
    """What the table, the closing line and the output file are made of.

    Attributes:
        molecules: Of all files, in order.
        files: The file of each molecule.
        frames: Its number in that file, from 1.
        values: What the model says, in `unit`.
        references: What the files say about the same target; NaN where they say nothing.
        target: Name of the property.
        unit: Of `values` and `references`.
    """

    molecules: Molecules
    files: list[str]
    frames: list[int]
    values: NDArray[np.float64]
    references: NDArray[np.float64]
    target: str
    unit: str
