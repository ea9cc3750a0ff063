"""One step in the file format of https://www.speedscope.app: times, and memory at the peak."""

from __future__ import annotations

import json
from typing import Any

from torchkiln.profiling.graph._values import GraphProfile
from torchkiln.profiling.views._timeline import NOT_RUN, Level, lay_out, module_parts

_SCHEMA = "https://www.speedscope.app/file-format-schema.json"


class _Frames:
    """The frames of a file, each once."""

    def __init__(self) -> None:
        self.listed: list[dict[str, Any]] = []
        self._places: dict[Level, int] = {}

    def place_of(self, level: Level) -> int:
        if level not in self._places:
            self._places[level] = len(self.listed)
            frame: dict[str, Any] = {"name": level.name}
            if level.line is not None:
                code = level.line.code.strip()
                frame["name"] = f"{level.name}  {code}" if code else level.name
                frame |= {"file": level.line.file, "line": level.line.line}
            self.listed.append(frame)
        return self._places[level]


def make_speedscope(profile: GraphProfile) -> dict[str, Any]:
    """Return the file as JSON values."""
    frames = _Frames()
    profiles = [_times(profile, frames)]
    if profile.liveness is not None:
        profiles.append(_memory(profile, frames))
    return {
        "$schema": _SCHEMA,
        "shared": {"frames": frames.listed},
        "profiles": profiles,
        "name": f"{profile.name}: {profile.model}",
        "activeProfileIndex": 0,
        "exporter": f"torchkiln@{profile.versions.get('torchkiln', 'unknown')}",
    }


def render_speedscope(profile: GraphProfile) -> str:
    return json.dumps(make_speedscope(profile), allow_nan=False)


def _times(profile: GraphProfile, frames: _Frames) -> dict[str, Any]:
    timeline = lay_out(profile)
    return {
        "type": "evented",
        "name": "time of one step" if profile.times is not None else NOT_RUN,
        "unit": "microseconds",
        "startValue": 0,
        "endValue": timeline.end_ns / 1000,
        "events": [
            {
                "type": "O" if edge.opens else "C",
                "frame": frames.place_of(edge.level),
                "at": edge.at_ns / 1000,
            }
            for edge in timeline.edges
        ],
    }


def _memory(profile: GraphProfile, frames: _Frames) -> dict[str, Any]:
    """Return what is alive at the peak, by kind, module, line and operator."""
    liveness = profile.liveness
    assert liveness is not None
    samples, weights = [], []
    for name, size_bytes in liveness.always.items():
        levels = [Level("always there", "memory"), Level(name, "memory")]
        samples.append([frames.place_of(level) for level in levels])
        weights.append(size_bytes)
    for block in liveness.blocks:
        if not block.at_peak:
            continue
        levels = [Level(block.kind, "memory")]
        levels += [Level(name, "module") for name in module_parts(block.module)]
        line = profile.line_of(block)
        if line is not None:
            levels.append(Level(str(line), "line", line))
        levels.append(Level(f"{block.operator} {block.shape}".strip(), "memory"))
        samples.append([frames.place_of(level) for level in levels])
        weights.append(block.size_bytes)
    return {
        "type": "sampled",
        "name": "memory at the peak",
        "unit": "bytes",
        "startValue": 0,
        "endValue": sum(weights),
        "samples": samples,
        "weights": weights,
    }
