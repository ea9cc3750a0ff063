"""CosmicTagger in a process that may have so many bytes of addresses and no more.

    python _limited_cosmic.py LIMIT_BYTES FOLDER ARGUMENTS...

Each process of a run writes to FOLDER how it ended, and the most addresses that it had; 0 as the
limit means none.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from pathlib import Path


def peak_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmPeak"))


def main() -> int:
    limit, folder = int(sys.argv[1]), Path(sys.argv[2])
    if limit:
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    from torchkiln.apps.cosmic import main as run

    code = run(sys.argv[3:])
    rank = os.environ.get("RANK", "0")
    found = {"code": int(code), "peak_bytes": peak_bytes()}
    (folder / f"process-{rank}.json").write_text(json.dumps(found))
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
