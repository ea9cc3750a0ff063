"""`PVTI_OPTIONS`: what the environment says about a recording, read as kindly as possible.

    export PVTI_OPTIONS='{"enable":"true", "directory":"system_profile"}'

Whoever sets the variable wants a recording. So what cannot be understood is told, and left at its
default; a run does not end because of it.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchkiln.core import OptionsError
from torchkiln.core._near_miss import did_you_mean

VARIABLE = "PVTI_OPTIONS"
_WORDS = {
    **dict.fromkeys(("true", "1", "on", "yes"), True),
    **dict.fromkeys(("false", "0", "off", "no"), False),
}
_KEYS = ("enable", "directory", "channels", "duration")


@dataclass(frozen=True, slots=True)
class RecordOptions:
    """What is recorded, how long, and where it goes.

    Args:
        directory: Gets the files of all processes, and `trace.json`.
        channels: Only these; None: all.
        duration_s: Recording ends after so many seconds; None: with the run.
    """

    directory: Path = Path()
    channels: frozenset[str] | None = None
    duration_s: float | None = None

    def __post_init__(self) -> None:
        duration_s = self.duration_s
        if duration_s is not None and not (math.isfinite(duration_s * 1e9) and duration_s > 0):
            raise OptionsError(
                f"duration_s must be a positive number of seconds, got {duration_s!r}; leave it "
                "out to record the whole run"
            )


def to_channels(channels: Iterable[str] | None) -> frozenset[str] | None:
    """Return names of channels as a set; one name may stand alone.

    Raises:
        OptionsError: They are no names.
    """
    if channels is None:
        return None
    names = [channels] if isinstance(channels, str) else list(channels)
    if not names or not all(isinstance(name, str) and name for name in names):
        raise OptionsError(
            f"channels must be a list of names, got {channels!r}; leave it out to record all"
        )
    return frozenset(names)


def read_options(text: str) -> tuple[RecordOptions | None, list[str]]:
    """Return what `PVTI_OPTIONS` asks for, None if that is nothing, and what is wrong with it."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        return RecordOptions(), [f"it is not JSON ({error})"]
    if not isinstance(values, dict):
        return RecordOptions(), [f"it is not a JSON object, but {text.strip()[:40]}"]
    problems: list[str] = []
    if not _is_enabled(values.get("enable", True), problems):
        return None, problems
    options = RecordOptions(
        _directory(values.get("directory"), problems),
        _channels(values.get("channels"), problems),
        _duration(values.get("duration"), problems),
    )
    for name in values.keys() - set(_KEYS):
        hint = did_you_mean(name, list(_KEYS), otherwise=f"there are {', '.join(_KEYS)}")
        problems.append(f"{name!r} is unknown ({hint})")
    return options, problems


def _is_enabled(value: Any, problems: list[str]) -> bool:
    known = _WORDS.get(str(value).strip().lower())
    if known is None:
        problems.append(f'"enable" is {value!r}, neither "true" nor "false"')
        return True
    return known


def _directory(value: Any, problems: list[str]) -> Path:
    if value is None:
        return Path()
    if isinstance(value, str) and value and "\0" not in value:
        # Homes of users that do not exist, and halves of characters.
        with contextlib.suppress(RuntimeError, UnicodeError):
            os.fsencode(value)
            return Path(value).expanduser()
    problems.append(f'"directory" is {value!r}, not the name of a folder')
    return Path()


def _channels(value: Any, problems: list[str]) -> frozenset[str] | None:
    if value is None or value == []:
        return None
    try:
        return to_channels(value)
    except (OptionsError, TypeError):
        problems.append(f'"channels" is {value!r}, not a list of names')
        return None


def _duration(value: Any, problems: list[str]) -> float | None:
    if value is None:
        return None
    try:
        seconds = float(value) if not isinstance(value, bool) else math.nan
    except (TypeError, ValueError, OverflowError):
        seconds = math.nan
    if not (math.isfinite(seconds * 1e9) and seconds > 0):
        problems.append(f'"duration" is {value!r}, not a positive number of seconds')
        return None
    return seconds
