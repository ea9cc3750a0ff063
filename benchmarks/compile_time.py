"""Cold compile of BERT and GPT-2 with two base-sized layers, beside that of torch.compile.

    python benchmarks/compile_time.py [--repeats 3] [--models BERT GPT-2]

Seconds from a model to the end of its first training step, in a fresh process with empty caches of
all kinds each time; contenders take turns. Needs `transformers` beside this project, as in the
environment that `make clients` makes (`.clients/transformers/bin/python`); without it, it says so
and ends. Writes benchmarks/results/<machine>/compile_time.json.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from _compile_time_models import MODELS, sizes_of
from _results import machine, result_path, write_result
from _small import parse_arguments

CHILD = Path(__file__).with_name("_compile_time_child.py")
OURS, THEIRS, THEIRS_WHOLE = "torchkiln", "torch.compile", "torch.compile, update included"
# What the first process on a machine would find: nothing.
_CACHES = {
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "POPTORCH_CACHE_DIR": "executables",
    "XDG_CACHE_HOME": "user",
    "TMPDIR": "temporary",
}


def start_once(model: str, contender: str, *, tiny: bool) -> dict[str, Any]:
    """Return seconds of one cold start, and of its phases."""
    with tempfile.TemporaryDirectory(prefix="torchkiln-cold-") as folder:
        caches = {name: Path(folder, place) for name, place in _CACHES.items()}
        for path in caches.values():
            path.mkdir()
        command = [sys.executable, str(CHILD), model, contender, *(["--tiny"] if tiny else [])]
        done = subprocess.run(
            command,
            env={**os.environ, **{name: str(path) for name, path in caches.items()}},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        sys.exit(f"{contender} failed with {model}:\n{done.stderr}")
    record: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return record


def measure(model: str, repeats: int, *, tiny: bool) -> dict[str, Any]:
    """Let the contenders take turns, in another order each time."""
    contenders = [OURS, THEIRS, THEIRS_WHOLE]
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in contenders}
    for turn in range(repeats):
        for place in range(len(contenders)):
            name = contenders[(turn + place) % len(contenders)]
            runs[name].append(start_once(model, name, tiny=tiny))
            print(f"{model:<6} {name:<32} {runs[name][-1]['seconds']:7.1f} s", flush=True)
    seconds = {name: [run["seconds"] for run in own] for name, own in runs.items()}
    ratios = {
        other: statistics.median(
            one / two for one, two in zip(seconds[OURS], seconds[other], strict=True)
        )
        for other in (THEIRS, THEIRS_WHOLE)
    }
    phases = {
        phase: statistics.median(run["phases"].get(phase, 0.0) for run in runs[OURS])
        for phase in runs[OURS][0]["phases"]
    }
    return {
        "median_seconds": {name: statistics.median(own) for name, own in seconds.items()},
        "ratio_to": ratios,
        "phases_seconds": phases,
        "runs": seconds,
    }


def main() -> None:
    """Measure, print the ratios, keep all figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--json", type=Path, default=result_path("compile_time"))
    wanted = parse_arguments(parser, repeats=1)
    if importlib.util.find_spec("transformers") is None:
        print(
            "skipped: this Python has no transformers. Run `make clients`, which installs it "
            "beside this project, and then run this script with .clients/transformers/bin/python"
        )
        return
    found = {}
    for model in wanted.models:
        found[model] = measure(model, wanted.repeats, tiny=wanted.small)
        for other, ratio in found[model]["ratio_to"].items():
            print(f"{model:<6} {OURS} takes {ratio:.2f} times as long as {other}", flush=True)
    record = {
        "command": f"benchmarks/compile_time.py --repeats {wanted.repeats}",
        **machine(),
        "transformers": version("transformers"),
        "sizes": vars(sizes_of(tiny=wanted.small)),
        "models": found,
    }
    write_result(wanted.json, record)
    print(f"wrote {wanted.json}")


if __name__ == "__main__":
    main()
