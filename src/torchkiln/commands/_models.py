"""`torchkiln models`: which trained models there are. No torch: headers hold facts and sizes."""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchkiln.checkpoints._generations import (
    Damaged,
    Generation,
    header_file,
    list_generations,
    read_generation,
    read_newest,
)
from torchkiln.commands._folders import folders_in
from torchkiln.core import CheckpointError
from torchkiln.report._results_file import to_plain
from torchkiln.report._tables import print_table, shown_time
from torchkiln.report._units import format_short_error

_COLUMNS = (
    *("name", "target", "unit", "dataset", "parameters", "epochs", "validation MAE", "date"),
    "path",
)
_LEAST_NEEDED = ("path", "unit", "parameters", "dataset", "date", "epochs")
_NUMBERS = ("parameters", "epochs", "validation MAE")
# Where `Trainer` and CosmicTagger keep the checkpoint of a run, below its folder.
_INNER = "checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredModel:
    """A checkpoint.

    Args:
        name: What it is called by.
        path: Its folder.
        time_s: When it was saved.
        generation: The newest one that is whole; None if there is none.
        problem: What is wrong: nothing can be used, or only an older generation.
    """

    name: str
    path: Path
    time_s: float
    generation: Generation | None
    problem: str = ""

    @property
    def facts(self) -> Mapping[str, Any]:
        return {} if self.generation is None else self.generation.facts

    def to_record(self) -> dict[str, Any]:
        """Return what the list says about it, in JSON types."""
        dataset = _mapping(self.facts.get("dataset"))
        record = {
            "name": self.name,
            "path": str(self.path),
            "date": datetime.datetime.fromtimestamp(self.time_s).astimezone().isoformat(),
            "target": dataset.get("target"),
            "unit": dataset.get("unit") or None,
            "dataset": dataset.get("name"),
            "parameters": self.num_parameters,
            "epochs": self.facts.get("epoch"),
            "validation_mae": self.validation_mae,
        }
        if self.problem:
            record["problem"] = self.problem
        plain: dict[str, Any] = to_plain(record)
        return plain

    @property
    def num_parameters(self) -> int | None:
        if self.generation is None:
            return None
        if isinstance(count := self.facts.get("parameters"), int):
            return count
        # Earlier versions did not say it; the few numbers that are not learnt count too.
        sizes = self.generation.sizes()
        return sum(size for name, size in sizes.items() if name.startswith("model/"))

    @property
    def validation_mae(self) -> float | None:
        """The error of the weights that predict, in the unit of the target.

        These are the best ones. Without them they are the last ones, whose error is known only if
        the epoch before them was validated and they were not trained further.
        """
        epochs = self.facts.get("epochs") or []
        best = _mapping(self.facts.get("best")).get("epoch")
        if isinstance(best, int):
            chosen = epochs[best : best + 1]
        else:
            is_between = bool(_mapping(self.facts.get("sums")).get("steps"))
            chosen = [] if is_between else epochs[-1:]
        error = _mapping(chosen[0]).get("validation_mae") if chosen else None
        return float(error) if isinstance(error, int | float) else None


def list_models(checkpoint_dir: Path, *, as_json: bool) -> None:
    """Print one line a model, newest first; damaged ones are named as such."""
    models = find_models(checkpoint_dir)
    if as_json:
        sys.stdout.write(json.dumps([model.to_record() for model in models]) + "\n")
        return
    if not models:
        sys.stdout.write(
            f"there are no models in {checkpoint_dir}; `torchkiln bench --checkpoint true "
            "--model_name NAME` saves one, and --checkpoint_dir names another folder\n"
        )
        return
    print_table(
        f"{len(models)} model{'s' * (len(models) > 1)} in {checkpoint_dir}",
        _COLUMNS,
        [_cells(model) for model in models],
        right=_NUMBERS,
        may_be_left_out=_LEAST_NEEDED,
    )
    for model in models:
        if model.problem:
            sys.stdout.write(f"{model.name}: {model.problem}\n")


def find_models(checkpoint_dir: Path) -> list[StoredModel]:
    """Return the checkpoints below a folder, newest first.

    Raises:
        OptionsError: The folder cannot be read.
    """
    found = []
    for folder in folders_in(checkpoint_dir, "--checkpoint_dir"):
        for path in (folder, folder / _INNER):
            model = _look_at(folder.name, path)
            if model is not None:
                found.append(model)
                break
    return sorted(found, key=lambda model: (-model.time_s, model.name))


def _look_at(name: str, path: Path) -> StoredModel | None:
    """Return the checkpoint in a folder; None if nothing was saved there."""
    try:
        numbers = list_generations(path)
        if not numbers:
            return None
        time_s = header_file(path, numbers[-1]).stat().st_mtime
    except (CheckpointError, OSError):  # it is somebody else's, or has gone meanwhile
        return None
    try:
        try:
            newest = read_generation(path, numbers[-1])
            return StoredModel(name=name, path=path, time_s=time_s, generation=newest)
        except Damaged as finding:
            problem = f"its newest checkpoint is damaged ({finding})"
        older = read_newest(path)
        text = f"{problem}; the one before it is whole and is used"
        time_s = header_file(path, older.number).stat().st_mtime
        return StoredModel(name=name, path=path, time_s=time_s, generation=older, problem=text)
    except CheckpointError as error:
        return StoredModel(name=name, path=path, time_s=time_s, generation=None, problem=str(error))


def _cells(model: StoredModel) -> list[str]:
    if model.generation is None:
        return [
            model.name,
            "",
            "",
            "damaged",
            "",
            "",
            "",
            shown_time(model.time_s),
            str(model.path),
        ]
    dataset, error = _mapping(model.facts.get("dataset")), model.validation_mae
    unit = str(dataset.get("unit") or "")
    parameters, epochs = model.num_parameters, model.facts.get("epoch")
    return [
        model.name,
        str(dataset.get("target") or ""),
        unit,
        str(dataset.get("name") or model.facts.get("name") or ""),
        "" if parameters is None else f"{parameters:,}",
        "" if epochs is None else str(epochs),
        "" if error is None else format_short_error(error, unit),
        shown_time(model.time_s),
        str(model.path),
    ]


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
