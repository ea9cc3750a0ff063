"""Operations that do harm: tests of system calls that find none in them would find none at all."""

from __future__ import annotations

import abc
from pathlib import Path
from typing import Any

from _fail_calls import BYSTANDER, Scenario

from torchkiln.core import StoreError


class _Text(Scenario):
    """A file that is replaced by a longer one; errors are as they should be."""

    def operate(self, folder: Path) -> Any:
        try:
            self.work(folder)
        except OSError as error:
            raise StoreError(f"{folder}: {error}") from error

    @abc.abstractmethod
    def work(self, folder: Path) -> None: ...

    def prepare(self, folder: Path) -> None:
        (folder / "text").write_text("old")

    def state(self, folder: Path) -> Any:
        return (folder / "text").read_text()


class InPlace(_Text):
    """Overwrites what is there."""

    def work(self, folder: Path) -> None:
        (folder / "text").write_text("new and longer")


class Littering(_Text):
    """Replaces the file in one step, and leaves what it wrote if that fails."""

    def work(self, folder: Path) -> None:
        names = [path.name for path in folder.iterdir()]
        unfinished = folder / f"text-{len(names)}"
        unfinished.write_text("new and longer")
        unfinished.rename(folder / "text")


class Clearing(_Text):
    """Makes room by removing what is not its own."""

    def work(self, folder: Path) -> None:
        notes = (folder / BYSTANDER).read_text()
        (folder / BYSTANDER).unlink()
        (folder / "new").write_text("new and longer")
        (folder / "new").replace(folder / "text")
        (folder / BYSTANDER).write_text(notes)


class Pretending(_Text):
    """Says that all is well, whatever happened."""

    def work(self, folder: Path) -> None:
        try:
            (folder / "new").write_text("new and longer")
            (folder / "new").replace(folder / "text")
        except OSError:
            (folder / "new").unlink(missing_ok=True)


# With what is said of each.
HARMFUL: dict[str, tuple[type[Scenario], str]] = {
    "overwriting in place": (InPlace, "neither old nor new"),
    "leaving unfinished files": (Littering, "left behind"),
    "removing what is another's": (Clearing, BYSTANDER),
    "hiding errors": (Pretending, "not the new state"),
}
