"""`--small`: a benchmark from its first to its last line in seconds, to see that it runs.

Sizes are tiny, nothing is compiled natively (unless TORCHKILN_BACKEND asks for it), and what would
be written goes to a folder that is deleted: kept results are never touched. The figures that are
printed mean nothing.
"""

from __future__ import annotations

import argparse
import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

# Where results go, and what they are called in the temporary folder.
_OUTPUTS = {"json": "results.json", "plot": "plot.png", "folder": "runs", "cache": "cache"}


def parse_arguments(parser: argparse.ArgumentParser, **small: Any) -> argparse.Namespace:
    """Parse the command line, with `--small` added: then `small` are the defaults.

    Flags that are given win, with `--small` too.
    """
    parser.add_argument(
        "--small",
        action="store_true",
        help="run everything once in tiny sizes, to see that it works; keeps no results",
    )
    if "--small" in sys.argv[1:]:
        os.environ.setdefault("TORCHKILN_BACKEND", "capture")
        folder = Path(tempfile.mkdtemp(prefix="torchkiln-small-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        known = {action.dest for action in parser._actions}
        places = {name: folder / file for name, file in _OUTPUTS.items() if name in known}
        parser.set_defaults(**{**places, **small})
    return parser.parse_args()
