"""CosmicTagger as one of two stages: `torchrun _cosmic_stages.py FOLDER ARGUMENT...`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from _cosmic_ranks import RANK, Signalled

from torchkiln.apps.cosmic import main


def run_all(arguments):
    return {
        "whole": main([*arguments, "run.id=whole"]),
        "stopped": main([*arguments, "run.id=stopped"], make_ipu=Signalled),
        "resumed": main([*arguments, "run.id=stopped", "mode.resume=true"]),
        "three": main([*arguments, "run.id=three", "run.pipeline=first,deepest,upsamples.0"]),
    }


if __name__ == "__main__":
    found = run_all(sys.argv[2:])
    Path(sys.argv[1], f"codes-{RANK}.json").write_text(json.dumps(found))
