"""Events as pairs of tensors for a loader: from files, or generated when they are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol, final

import torch
from torch import Tensor
from torch.utils.data import Dataset

from torchkiln.core import OptionsError
from torchkiln.core._progress import progress_bar
from torchkiln.datasets.cosmic._event import CosmicEvent, Pooling
from torchkiln.datasets.cosmic._generate import generate_event
from torchkiln.datasets.cosmic._larcv3 import Larcv3Events


class Events(Protocol):
    """A sequence of events."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> CosmicEvent: ...


@final
class GeneratedEvents:
    """So many generated events; each is a function of `seed` and its number.

    Args:
        num_events: How many.
        seed: Of all of them; events of two seeds have nothing in common.

    Raises:
        OptionsError: if there is no event, or `seed` is negative.
    """

    def __init__(self, num_events: int, *, seed: int = 0) -> None:
        if num_events < 1:
            raise OptionsError(f"num_events must be at least 1, got {num_events}")
        if seed < 0:
            raise OptionsError(f"seed must not be negative, got {seed}")
        self.num_events = num_events
        self.seed = seed

    def __len__(self) -> int:
        return self.num_events

    def __getitem__(self, index: int) -> CosmicEvent:
        if not -len(self) <= index < len(self):
            raise IndexError(f"event {index} of {len(self)}")
        return generate_event(self.seed, index % len(self))


@final
class CosmicImages(Dataset[tuple[Tensor, Tensor]]):
    """Dense images and labels of events, as `Segmentation` takes them.

    Args:
        events: `GeneratedEvents`, `Larcv3Events`, or a list of events.
        downsample: Squares of so many pixels a side become one: 1 gives 1280 x 2048, 8 gives
            160 x 256.
        pooling: See `CosmicEvent.dense`.
        in_memory: Keep all images, made when the object is: for several epochs over events that are
            slow to make.
        progress: Show a bar meanwhile, on a terminal.
    """

    def __init__(
        self,
        events: Events | Sequence[CosmicEvent],
        *,
        downsample: int = 1,
        pooling: Pooling = "sum",
        in_memory: bool = False,
        progress: bool = False,
    ) -> None:
        self.events = events
        self.downsample = downsample
        self.pooling: Pooling = pooling
        self._kept = self._make_all(progress) if in_memory else None

    def __len__(self) -> int:
        return len(self.events)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Return signals, float32 [3, height, width], and labels, uint8 of the same shape."""
        return self._kept[index] if self._kept is not None else self._make(index)

    def _make_all(self, progress: bool) -> list[tuple[Tensor, Tensor]]:
        # Drawing particles needs no Python, so threads help.
        with ThreadPoolExecutor(torch.get_num_threads()) as threads:
            images = threads.map(self._make, range(len(self)))
            bar = progress_bar(images, desc="Events", total=len(self), leave=False, show=progress)
            return list(bar)

    def _make(self, index: int) -> tuple[Tensor, Tensor]:
        image, labels = self.events[index].dense(self.downsample, pooling=self.pooling)
        return torch.from_numpy(image), torch.from_numpy(labels)


def load_cosmic(
    root: Path | str | None = None,
    *,
    num_events: int = 1000,
    seed: int = 0,
    downsample: int = 8,
    pooling: Pooling = "sum",
    in_memory: bool = False,
    progress: bool = False,
) -> CosmicImages:
    """Return images of the events in files, or of generated ones.

    Args:
        root: larcv3 file, or folder of such; None: events are generated,
        num_events: so many,
        seed: from this seed.
        downsample: Squares of so many pixels a side become one.
        pooling: See `CosmicEvent.dense`.
        in_memory: Make all images now, and keep them.
        progress: Show a bar meanwhile, on a terminal.

    Raises:
        StoreError: if a file is damaged or of another kind.
        OptionsError: if a number makes no sense.
    """
    events: Events = GeneratedEvents(num_events, seed=seed) if root is None else Larcv3Events(root)
    return CosmicImages(
        events, downsample=downsample, pooling=pooling, in_memory=in_memory, progress=progress
    )
