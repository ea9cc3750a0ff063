"""What building a program gives: the executable, and what is known about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from torchkiln.runtime.call._metadata import ProgramMetadata
from torchkiln.runtime.execute._executable import Executable


@dataclass(frozen=True, slots=True)
class Built:
    """An executable and what its caller must know about it."""

    executable: Executable
    metadata: ProgramMetadata
    # The package file of native code, for backends that make one.
    package: Path | None = None
    # How many compilations and captures it took: none if a cache had it.
    compiled: int = 0
    captured: int = 0
    # Seconds of each phase of a build.
    phases: dict[str, float] = field(default_factory=dict)

    @property
    def source(self) -> str:
        """Where the executable is from, in words for people."""
        if self.package is None:
            return "captured" if self.captured else "eager"
        return "compiled" if self.compiled else "cache hit"
