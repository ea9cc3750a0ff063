"""How far a run is, in the words of its application."""

from __future__ import annotations

from pathlib import Path
from typing import final

from torchkiln.training._batches import EpochBatches
from torchkiln.training._checkpoint_plan import Words
from torchkiln.training._history import History
from torchkiln.training._task import Place


@final
class Whereabouts:
    """Follows a run, and says where it is.

    Args:
        history: Of the run, live.
        batches: Know how long an epoch is.
        words: Whether people count epochs or updates.
    """

    def __init__(self, history: History, batches: EpochBatches, words: Words) -> None:
        self._history = history
        self._batches = batches
        self._words = words
        # Of the whole run.
        self.num_epochs = 0

    def place(self, num_steps: int = 0) -> Place:
        """Return where the run is, in an epoch of so many steps."""
        history = self._history
        return Place(
            epoch=history.epoch,
            num_epochs=self.num_epochs,
            step=history.sums.steps,
            num_steps=num_steps,
            updates=history.updates,
        )

    def start(self, directory: Path) -> str:
        """Say where a run goes on that was saved in `directory`."""
        history = self._history
        if history.epoch >= self.num_epochs:
            done = f"{history.epoch} epoch{'s' * (history.epoch != 1)}"
            return f"{directory} is complete: {done} of {self.num_epochs} done"
        # Updates on filler alone, at the end of an epoch, change nothing and are not counted.
        more = f", after {len(history.steps()):,} weight updates"
        return f"continuing {directory} {self}{more if self._words.counts == 'epochs' else ''}"

    def end(self, directory: Path | None) -> str:
        """Say where a run ended that could not be saved; `directory` has what was saved before."""
        kept = "nothing of it is saved" if directory is None else f"it can go on from {directory}"
        return f"the run ended {self.place()}, after {self._history.updates:,} updates; {kept}"

    def __str__(self) -> str:
        if self._words.counts == "epochs":
            return str(self.place())
        total = self.num_epochs * self._batches.num_batches(self._history.epoch)
        return f"after {self._history.updates:,} of {total:,} updates"
