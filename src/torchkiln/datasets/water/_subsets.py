"""Which clusters `debug`, `test`, `train` and `all` mean."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchkiln.core import OptionsError

# One cluster in so many is for the test; of generated ones, one random start in so many.
_TEST_PERIOD = 10
# HydroNet's range.
MIN_MOLECULES, MAX_MOLECULES = 3, 30


@dataclass(frozen=True, slots=True)
class Subset:
    """A part of the water clusters.

    Attributes:
        name: What the user calls it.
        max_molecules: Largest clusters; None: any that files have, generated ones up to HydroNet's.
        test: Whether clusters for the test belong to it.
        train: Whether the others do.
        max_per_size: How many clusters of each size at most; None: all.
        generated_per_size: How many are generated for each size where there are no files.
    """

    name: str
    max_molecules: int | None
    test: bool
    train: bool
    max_per_size: int | None
    generated_per_size: int

    @property
    def generated_sizes(self) -> range:
        return range(MIN_MOLECULES, (self.max_molecules or MAX_MOLECULES) + 1)

    def holds(self, num_molecules: int) -> bool:
        """Return whether clusters of this size may belong to it."""
        return self.max_molecules is None or num_molecules <= self.max_molecules

    @property
    def share(self) -> float:
        """Which part of what is there belongs to it."""
        return self.test / _TEST_PERIOD + self.train * (1 - 1 / _TEST_PERIOD)

    def chosen(self, numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which clusters belong to it, by their numbers within a size (or their starts')."""
        is_test = numbers % _TEST_PERIOD == _TEST_PERIOD - 1
        return np.asarray(np.where(is_test, self.test, self.train))


_SUBSETS = {
    subset.name: subset
    for subset in (
        Subset("debug", 10, test=True, train=True, max_per_size=200, generated_per_size=200),
        Subset("test", None, test=True, train=False, max_per_size=None, generated_per_size=800),
        Subset("train", None, test=False, train=True, max_per_size=None, generated_per_size=800),
        Subset("all", None, test=True, train=True, max_per_size=None, generated_per_size=800),
    )
}
SUBSETS = tuple(_SUBSETS)


def find_subset(name: str) -> Subset:
    """Return the subset of this name.

    Raises:
        OptionsError: if there is none.
    """
    if name not in _SUBSETS:
        raise OptionsError(f"unknown water dataset {name!r}; choose from {', '.join(SUBSETS)}")
    return _SUBSETS[name]
