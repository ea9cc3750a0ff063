"""One event of the detector: the pixels that have a signal, and dense images made of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final, get_args

import numpy as np
from numpy.typing import NDArray

from torchkiln.core import OptionsError

NUM_PLANES = 3
# Of a plane of the SBND detector, as CosmicTagger's files have it.
NUM_TICKS, NUM_WIRES = 1280, 2048
# Labels of pixels.
BACKGROUND, COSMIC, NEUTRINO = range(3)

Pooling = Literal["sum", "max"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class CosmicEvent:
    """Pixels with a signal, of all three planes; each pixel once, plane by plane.

    Attributes:
        planes: uint8 [num_pixels], 0 to 2.
        ticks: Drift time, the row of an image, int32 [num_pixels].
        wires: The column of an image, int32 [num_pixels].
        values: Signals, float32 [num_pixels].
        labels: uint8 [num_pixels]: 0 background, 1 cosmic, 2 neutrino.
        height: Rows of an image.
        width: Columns of an image.
    """

    planes: NDArray[np.uint8]
    ticks: NDArray[np.int32]
    wires: NDArray[np.int32]
    values: NDArray[np.float32]
    labels: NDArray[np.uint8]
    height: int = NUM_TICKS
    width: int = NUM_WIRES

    @property
    def num_pixels(self) -> int:
        return len(self.values)

    def dense(
        self, downsample: int = 1, *, pooling: Pooling = "sum"
    ) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
        """Return the image, float32 [3, height, width], and its labels, uint8 of the same shape.

        Args:
            downsample: Squares of so many pixels a side become one; 1 keeps all.
            pooling: The value of such a square: "sum" of its signals, or their "max". Its label is
                neutrino if one of its pixels is, else cosmic if one is: thin tracks stay whole.

        Raises:
            OptionsError: if squares do not tile the image, or there is no such pooling.
        """
        if downsample < 1 or self.height % downsample or self.width % downsample:
            raise OptionsError(
                f"downsample must divide the height {self.height} and the width {self.width}, got "
                f"{downsample}; powers of two up to {np.gcd(self.height, self.width)} do"
            )
        if pooling not in get_args(Pooling):
            raise OptionsError(f"pooling must be 'sum' or 'max', got {pooling!r}")
        height, width = self.height // downsample, self.width // downsample
        rows = self.planes.astype(np.int64) * height + self.ticks // downsample
        cells = rows * width + self.wires // downsample
        image = np.zeros((NUM_PLANES, height, width), np.float32)
        labels = np.zeros((NUM_PLANES, height, width), np.uint8)
        if pooling == "sum":
            np.add.at(image.reshape(-1), cells, self.values)
        else:
            np.maximum.at(image.reshape(-1), cells, self.values)
        np.maximum.at(labels.reshape(-1), cells, self.labels)
        return image, labels
