"""What a resumed run of the benchmark must share with the one that was saved."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchkiln.apps.schnet._job import TrainingJob
from torchkiln.datasets import MoleculeSet
from torchkiln.training._identity import identify_optimizer, identify_options, to_kept
from torchkiln.training._saving import RunState

# Of the largest number of a part. What was summed up on other processors differs by 1e-13 of it,
# and numbers of other molecules by far more than this.
_TOLERANCE = 1e-10
# Parts that tell edited or other molecules of the same sizes from those that were trained on.
_OF_THE_DATA = ("target_rms", "positions_rms")


def identity_of(job: TrainingJob, state: RunState) -> dict[str, Any]:
    """Return, in JSON types, what a resumed run must share with the one that was saved.

    How many epochs there are, and how a step is compiled, may change.
    """
    facts = {
        "dataset": describe_dataset(job.dataset),
        "transform": job.dataset.transform.to_dict(),
    }
    return {
        "model": to_kept("model_arguments", dict(job.model_arguments)),
        **without_labels(facts),
        "target_rms": _target_rms(job.dataset),
        "positions_rms": {"all": _rms(job.dataset.molecules.pos)},
        "optimizer": identify_optimizer(job.optimizer),
        "scheduler": None if state.schedule is None else state.schedule.identity(),
        "ema_decay": job.ema_decay,
        "synthetic_data": job.synthetic_data,
        "options": identify_options(job.options),
        **to_kept("fixed", dict(job.fixed)),
    }


def describe_dataset(dataset: MoleculeSet) -> dict[str, Any]:
    """Return facts about the molecules; `elements` are those that training sees."""
    train = dataset.molecules.take(dataset.splits["train"])
    return {**dataset.describe(), "elements": train.elements}


def _target_rms(dataset: MoleculeSet) -> dict[str, float]:
    """Return the root mean square of the target in each split.

    It tells other splits of the same sizes apart, and other molecules of the same sizes, where
    nothing about them is fitted. A run that goes on with those would train on its own test set.
    """
    return {
        name: _rms(dataset.values[indices]) if len(indices) else 0.0
        for name, indices in dataset.splits.items()
    }


def _rms(values: NDArray[np.float64]) -> float:
    return float(np.sqrt(np.square(values).mean()))


def without_labels(identity: Mapping[str, Any]) -> dict[str, Any]:
    """Return what identifies a run, without words that change no number: files may have moved."""
    labels = ("name", "source", "unit")
    return {
        part: {name: value for name, value in values.items() if name not in labels}
        if part in ("dataset", "transform")
        else values
        for part, values in identity.items()
    }


def overlook_rounding(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Return `before` with the numbers of `now` where they differ in their last digits only.

    Least squares and means do so where a processor adds up in another order.

    Args:
        before: What identifies the run that was saved. Earlier versions kept nothing of the targets
            and positions themselves.
        now: What identifies the one that goes on.
    """
    before = {**{part: now[part] for part in _OF_THE_DATA}, **before}
    same = {
        part: now[part]
        for part in ("transform", *_OF_THE_DATA)
        if _is_same_but_for_rounding(before[part], now[part])
    }
    return {**before, **same}


def _is_same_but_for_rounding(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    old, new = dict(_leaves(before)), dict(_leaves(now))
    scale = max((abs(value) for value in new.values() if isinstance(value, float)), default=0.0)
    return old.keys() == new.keys() and all(
        math.isclose(old[name], value, rel_tol=0.0, abs_tol=_TOLERANCE * scale)
        if isinstance(value, float) and isinstance(old[name], float)
        else old[name] == value
        for name, value in new.items()
    )


def _leaves(values: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[Any, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, (*path, name))
        else:
            yield (*path, name), value
