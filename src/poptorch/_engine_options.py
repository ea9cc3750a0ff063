"""The engine's options about reports, from the program and from `POPLAR_ENGINE_OPTIONS`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from poptorch._logging import logger

VARIABLE = "POPLAR_ENGINE_OPTIONS"
# Any of them asks for a report; there is only one kind of report here.
_SWITCHES = ("autoReport.all", "autoReport.outputGraphProfile", "autoReport.outputExecutionProfile")
_DIRECTORY = "autoReport.directory"
# Options that say where and whether reports are written.
REPORT_KEYS = frozenset((*_SWITCHES, _DIRECTORY, "debug.allowOutOfMemory"))


def report_directory(engine_options: Mapping[str, Any]) -> Path | None:
    """Return where reports shall go, None for nowhere; the environment wins over the program."""
    chosen = {**engine_options, **_environment()}
    for key in _SWITCHES:
        if str(chosen.get(key, "false")).lower() == "true":
            return Path(str(chosen.get(_DIRECTORY, ".")))
    return None


def _environment() -> dict[str, Any]:
    text = os.environ.get(VARIABLE, "")
    if not text.strip():
        return {}
    try:
        values = json.loads(text)
    except ValueError as error:
        logger.warning("%s is no JSON and is ignored (%s): %s", VARIABLE, error, text)
        return {}
    if not isinstance(values, dict):
        logger.warning("%s must be a JSON object and is ignored: %s", VARIABLE, text)
        return {}
    return values
