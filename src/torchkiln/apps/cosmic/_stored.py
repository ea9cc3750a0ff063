"""What a run of CosmicTagger left in `results.json`, as a result that reports understand. No torch.

Its file has a form of its own: figures of every update stand in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchkiln.core import StoreError, parse_json, read_json
from torchkiln.report import EpochRecord, RunResult
from torchkiln.report._results_file import checksum_of

_PARTS = ("train", "held_out")


def is_cosmic(path: Path) -> bool:
    """Whether a file of results is one of CosmicTagger's; False for what cannot be read."""
    try:
        record = parse_json(path.read_bytes(), path.name)
    except (OSError, StoreError):
        return False
    return isinstance(record, dict) and "metrics" in record and "version" not in record


def read_cosmic(path: Path) -> RunResult:
    """Read the results of a training.

    Raises:
        StoreError: The file is damaged.
    """
    record = read_json(path)
    # Files of earlier versions have none.
    if "sha256" in record and record.pop("sha256") != checksum_of(record):
        raise StoreError(
            f"{path} is damaged: it does not have its checksum; run CosmicTagger again"
        )
    try:
        settings = record["settings"]
        return RunResult(
            status="finished",  # only those that are leave results
            settings=settings,
            dataset={"name": "CosmicTagger", "target": "pixels", "source": _source(settings)},
            model={"name": "UResNet2D", **settings["network"]},
            epochs=[_epoch(entry) for entry in record["epochs"]],
            steps=list(enumerate(map(float, record["steps"]["loss"]))),
            counted="images",
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StoreError(f"{path} is damaged: {error!r}; run CosmicTagger again") from error


def _source(settings: Mapping[str, Any]) -> str:
    data = settings["data"]
    return str(data["file"] or f"{data['num_events']} generated events")


def _epoch(entry: Mapping[str, Any]) -> EpochRecord:
    seconds, images = float(entry["seconds"]), int(entry["images"])
    figures = {
        f"{part}/{name}": float(value) for part in _PARTS for name, value in entry[part].items()
    }
    return EpochRecord(
        epoch=int(entry["epoch"]),
        loss=float(entry["loss"]),
        seconds=seconds,
        samples=images,
        samples_per_s=images / seconds if seconds else 0.0,
        learning_rate=float(entry["learning_rate"]),
        figures=figures,
    )
