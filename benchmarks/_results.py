"""Where figures are kept: `results/<machine>/NAME.json`, with raw rounds beside it, compressed.

The JSON is for people: medians, spreads, settings and versions. `NAME.json.gz` holds the same
record with every round and every loss, for pictures and for whoever wants to look closer. Neither
tells where on a disk it was made.
"""

from __future__ import annotations

import gzip
import json
import os
import platform
import re
import statistics
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
# Values of single rounds, of which people see the spread, and losses, which pictures show.
_ROUNDS = ("rounds", "runs")
_CURVES = ("curve",)
# Words in the names of processors that tell nothing.
_NOISE = re.compile(r"\((r|tm)\)|@.*|\b(amd|intel|cpu|processor|gen|\d+th|\d+-core)\b")
_PATH = re.compile(r"""(?<![\w.>)\]])/(?:[^\s/'"]+/)*([^\s/'"]+)/?""")
_LEAF = re.compile(r"([\[{])\n\s+([^\[\]{}]*?)\n\s+([\]}])")
_LINE_LENGTH = 130


def result_path(name: str) -> Path:
    """Return where this machine keeps the figures of a benchmark."""
    folder = machine_name(processor_name(), os.cpu_count() or 1)
    return ROOT / "benchmarks" / "results" / folder / f"{name}.json"


def machine_name(processor: str, cores: int) -> str:
    """Return a short name for a machine: family, model if the processor tells it, and cores.

    `AMD EPYC` with 2 cores is `epyc-2core`, `Intel(R) Core(TM) i7-9750H CPU @ 2.60GHz` with 6
    `core-i7-9750h-6core`.
    """
    words = _NOISE.sub(" ", processor.lower()).split()
    family = next((word for word in words if word.isalpha()), "cpu")
    model = [word for word in words if any(map(str.isdigit, word))][:1]
    return re.sub(r"[^a-z0-9]+", "-", "-".join([family, *model, f"{cores}core"]))


def processor_name() -> str:
    """Return what the processor calls itself."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def machine() -> dict[str, Any]:
    """Return where, when and with what figures were measured."""
    return {
        "when": datetime.now(UTC).isoformat(timespec="minutes"),
        "cpu": processor_name(),
        "cores": os.cpu_count(),
        "load_average_at_end": os.getloadavg()[0],
        "python": platform.python_version(),
        "torch": version("torch"),
        "torch_geometric": version("torch_geometric"),
        "torchkiln": version("torchkiln"),
    }


def write_result(path: Path, record: dict[str, Any]) -> None:
    """Write a record for people, and all of it compressed if it holds raw rounds."""
    from torchkiln.core import write_atomic

    path.parent.mkdir(parents=True, exist_ok=True)
    # As text and back: keys of numbers are text from here on.
    whole = _without_paths(json.loads(json.dumps(record)))
    summary = _summary(whole)
    raw = path.with_name(path.name + ".gz")
    if summary != whole:
        # Without a time: the same figures are the same file.
        write_atomic(raw, gzip.compress(json.dumps(whole).encode(), mtime=0))
    else:
        raw.unlink(missing_ok=True)
    write_atomic(path, _spelled(summary) + "\n")


def read_result(path: Path) -> dict[str, Any]:
    """Return a record with all its rounds, if they were kept; {} if there is none."""
    raw = path.with_name(path.name + ".gz")
    if not path.exists():
        return {}
    text = gzip.decompress(raw.read_bytes()).decode() if raw.exists() else path.read_text()
    record: dict[str, Any] = json.loads(text)
    return record


def _summary(value: Any) -> Any:
    if isinstance(value, list):
        return [_summary(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    result = {}
    for key, entry in value.items():
        if key in _ROUNDS and isinstance(entry, list | dict):
            result["spread_of_rounds"] = _spread(entry)
        elif key not in _CURVES:
            result[key] = _summary(entry)
    return result


def _spread(rounds: Any) -> Any:
    """Return least, quartiles and most of what the rounds have in common, and how many they are."""
    if isinstance(rounds, dict):
        return {key: _spread(entry) for key, entry in rounds.items()}
    if rounds and isinstance(rounds[0], dict):
        return {key: _spread([entry[key] for entry in rounds]) for key in rounds[0]}
    if rounds and isinstance(rounds[0], list):
        return [_spread(list(column)) for column in zip(*rounds, strict=True)]
    if len(rounds) < 2:
        return {"rounds": len(rounds)}
    low, _, high = statistics.quantiles(rounds, n=4, method="inclusive")
    marks = {"least": min(rounds), "q1": low, "q3": high, "most": max(rounds)}
    return {"rounds": len(rounds), **{name: float(f"{mark:.6g}") for name, mark in marks.items()}}


def _without_paths(value: Any) -> Any:
    """Return `value` with files named from the root of the project, or by their last part."""
    if isinstance(value, dict):
        return {key: _without_paths(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_without_paths(entry) for entry in value]
    if isinstance(value, str):
        return _PATH.sub(r"\1", value.replace(f"{ROOT}/", ""))
    return value


def _spelled(record: dict[str, Any]) -> str:
    """Return the record as JSON with small lists and dictionaries on one line."""

    def join(found: re.Match[str]) -> str:
        line = found[1] + re.sub(r",\n\s+", ", ", found[2]) + found[3]
        return line if len(line) <= _LINE_LENGTH else found[0]

    return _LEAF.sub(join, json.dumps(record, indent=1))
