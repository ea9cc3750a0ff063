"""Reading what a test recorded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from torchkiln.profiling.system._merge import find_runs
from torchkiln.profiling.system._reader import read_events
from torchkiln.profiling.system._timeline import Timed, Timeline


def events_in(folder: Path) -> list[dict]:
    """Return the events of the newest run in a folder, those of the main process first."""
    return [event for part in find_runs(folder)[0].parts for event in read_events(part)]


def marks_in(folder: Path) -> list[tuple[str, str, str]]:
    """Return (kind, channel, label) of all events but names."""
    return [
        (event["ph"], event["cat"], event["name"])
        for event in events_in(folder)
        if event["ph"] != "M" and event["cat"] != "process"
    ]


def follow(folder: Path) -> tuple[Timeline, list[Timed]]:
    timeline = Timeline()
    return timeline, list(timeline.follow(events_in(folder)))


def check_nesting(folder: Path) -> Timeline:
    """Require that every stretch has two ends, and lies within what it is a part of."""
    timeline, timed = follow(folder)
    assert timeline.num_misnested == 0
    for one in timed:
        stretch, parent = one.stretch, one.stretch.parent
        assert stretch.start_us <= stretch.end_us
        if parent is not None:
            assert parent.start_us <= stretch.start_us
            assert stretch.end_us <= parent.end_us
            assert parent.within_us <= parent.duration_us * (1 + 1e-9) + 1e-3
    begun = [event for event in events_in(folder) if event["ph"] == "B"]
    assert len(begun) == sum(one.kind == "E" for one in timed)
    return timeline


def run_python(code: str, *, check: bool = True, **environment: str):
    """Run a program in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert not check or done.returncode == 0, done.stderr
    return done


def pvti(**options: object) -> str:
    return json.dumps(options)
