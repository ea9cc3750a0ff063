"""Where and how often a run is saved, and the words in which a person asks for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from torchkiln.checkpoints import CheckpointStore
from torchkiln.core import CheckpointError, OptionsError


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """How a person says things to this application; messages name them as remedies.

    Args:
        go_on: Continues a run: "--resume true".
        begin: Begins one where there is none: "--resume false".
        name: What a run is called by: "--model_name".
        go_on_here: Continues this very run, with its name.
        save: How a run is saved at all.
        learning_rate: What to lower if a loss is not finite.
        every_epochs: What `CheckpointPlan.every_epochs` is called.
        counts: Whether people are told how far a run is in epochs or in updates.
        names_models: Whether there are many checkpoints side by side, each with a name.
        change: A setting that the checkpoint has another value of: `name`, `before`, `now`.
        counted: What a sample is, in the plural: "molecules".
    """

    go_on: str = 'resume="auto"'
    begin: str = 'resume="auto"'
    name: str = "directory"
    go_on_here: str = "the same program"
    save: str = "directory=... saves a run"
    learning_rate: str = "the learning rate"
    every_epochs: str = "save_every_epochs"
    counts: Literal["epochs", "updates"] = "epochs"
    names_models: bool = False
    change: str = "{name} was {before!r} and is {now!r}"
    counted: str = "samples"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPlan:
    """Where and how often a run is saved.

    Args:
        root: Directory of all checkpoints; each model has a directory of its own below it.
        model_name: Name of this one.
        every_epochs: Save after so many epochs; the last one and an interrupt are always saved.
        every_steps: Save also after so many calls of the training step; None: only after epochs.
        resume: Continue the checkpoint of that name instead of beginning one.
        doubtful: What the person asked for, with both values, that may be why the checkpoint turns
            out to be of another run.
        words: For messages.
    """

    root: Path
    model_name: str
    every_epochs: int = 1
    every_steps: int | None = None
    resume: bool = False
    doubtful: tuple[str, ...] = ()
    words: Words = field(default_factory=Words)

    def __post_init__(self) -> None:
        if self.every_epochs < 1:
            raise OptionsError(
                f"{self.words.every_epochs} must be at least 1, got {self.every_epochs}; the last "
                "epoch is saved in any case"
            )
        if self.every_steps is not None and self.every_steps < 1:
            raise OptionsError(
                f"save_every_steps must be at least 1, got {self.every_steps}; None saves after "
                "epochs only"
            )
        name = Path(self.model_name).name
        if not name or name != self.model_name or name == "..":
            raise OptionsError(
                f"model_name {self.model_name!r} cannot be the name of a directory; use letters, "
                "digits, '-' and '_'"
            )

    @property
    def directory(self) -> Path:
        return self.root / self.model_name

    def check(self) -> None:
        """Refuse what would overwrite, or continue nothing; cheap enough to ask before all else.

        Raises:
            CheckpointError: There is a checkpoint and `resume` is off, or the other way round.
        """
        words, exists = self.words, CheckpointStore(self.directory).exists()
        whose = f" of {self.model_name!r}" if words.names_models else ""
        if exists and not self.resume:
            raise CheckpointError(
                f"there is a checkpoint{whose} already, in {self.directory}; continue it with "
                f"{words.go_on}, or choose another {words.name}"
            )
        if self.resume and not exists:
            where = self.root if words.names_models else self.directory
            known = f": {self._known_names()}" if words.names_models else ""
            raise CheckpointError(
                f"there is no checkpoint{whose} in {where} to resume{known}; check {words.name}, "
                f"or begin one with {words.begin}"
            )

    def _known_names(self) -> str:
        known = sorted(
            path.name
            for path in (self.root.iterdir() if self.root.is_dir() else ())
            if CheckpointStore(path).exists()
        )
        return f"there are {', '.join(known)}" if known else "there is none at all"
