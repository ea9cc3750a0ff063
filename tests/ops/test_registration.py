"""Native code calls operators by name, so whoever loads it must find all of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torchkiln.ops


def test_importing_the_room_defines_every_operator():
    """A program from the cache traces nothing: no other import would define them."""
    room = Path(torchkiln.ops.__file__).parent
    defining = {p.stem for p in room.glob("*.py") if "define_operator(" in p.read_text()}
    code = "import sys, torchkiln.ops; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    loaded = {name.rpartition(".")[2] for name in done.stdout.split() if "torchkiln.ops" in name}
    assert len(defining) > 3
    assert defining <= loaded
