"""The settings of a run that is continued, as arguments of its command line. No torch here."""

from __future__ import annotations

import json
from typing import Any

from torchkiln.apps.cosmic._settings import Settings
from torchkiln.checkpoints._generations import list_generations, read_newest
from torchkiln.core import CheckpointError

FOLDER = "checkpoint"  # of a run, below its own
# What one command asks for, not the run.
_OF_THE_COMMAND = (
    *("mode.name", "mode.resume", "run.id", "run.output_dir", "run.quiet", "run.log_level"),
)


def saved_arguments(settings: Settings) -> list[str]:
    """Return what the checkpoint of a run was made with; [] if there is none.

    Raises:
        CheckpointError: It cannot be read, or every generation of it is damaged.
    """
    directory = settings.run.directory / FOLDER
    if not list_generations(directory):
        return []
    facts = read_newest(directory).facts
    # Earlier versions kept only what must not change.
    values = facts.get("settings") or facts.get("identity")
    if not isinstance(values, dict):
        raise CheckpointError(
            f"{directory} holds no run of CosmicTagger; name one that it saved with run.id"
        )
    return [
        f"--{name}={_spelled(value)}"
        for name, value in values.items()
        if name not in _OF_THE_COMMAND
    ]


def _spelled(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
