"""The folder of a profile: page, values, trace and speedscope file."""

from __future__ import annotations

import os
from pathlib import Path

from torchkiln.core import write_atomic
from torchkiln.profiling.graph._file import save_profile
from torchkiln.profiling.graph._values import GraphProfile
from torchkiln.profiling.views._page import render_page
from torchkiln.profiling.views._speedscope import render_speedscope
from torchkiln.profiling.views._trace import render_trace

PAGE_NAME = "report.html"
TRACE_NAME = "trace.json"
SPEEDSCOPE_NAME = "profile.speedscope.json"


def write_report(profile: GraphProfile, folder: str | os.PathLike[str]) -> list[Path]:
    """Write all files of a profile, each in one step, and return their paths; the page comes last.

    Everything is made before anything is written, so a failure leaves an older report whole.
    """
    folder = Path(folder)
    contents = {
        TRACE_NAME: render_trace(profile),
        SPEEDSCOPE_NAME: render_speedscope(profile),
        PAGE_NAME: render_page(profile),
    }
    paths = [save_profile(profile, folder)]
    for name, content in contents.items():
        write_atomic(folder / name, content)
        paths.append(folder / name)
    return paths
