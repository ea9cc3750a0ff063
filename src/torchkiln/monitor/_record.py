"""`torchkiln monitor --json`: what runs on this machine as one record for other programs."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

from torchkiln.core import __version__
from torchkiln.monitor._status import MachineStatus

# Another number if a name changes or goes; new names may come without.
RECORD_VERSION = 1


def status_record(status: MachineStatus) -> dict[str, Any]:
    """Return the fields of `MachineStatus` by name; what is unknown or not a number is None."""
    record: dict[str, Any] = _plain(dataclasses.asdict(status))
    return {"record_version": RECORD_VERSION, "torchkiln": __version__, **record}


def status_json(status: MachineStatus) -> str:
    return json.dumps(status_record(status), indent=2, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    # JSON has neither NaN nor infinity.
    return None if isinstance(value, float) and not math.isfinite(value) else value
