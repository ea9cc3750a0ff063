"""The settings of a run that is continued: those of its checkpoint, and what was given anew.

No torch up here: a command line that contradicts its checkpoint is answered at once.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchkiln.apps.schnet._config_file import (
    OPTIONS_KEY,
    short_names,
    spell_options,
    types_by_key,
)
from torchkiln.apps.schnet._settings import Settings
from torchkiln.checkpoints._generations import list_generations, read_newest
from torchkiln.core import CheckpointError, Options

_TARGET, _UNIT = "dataset_factory.target", "dataset_factory.unit"
_USE_QM9_ENERGY = "dataset_factory.use_qm9_energy"
# What `use_qm9_energy` decides where no flag of its own does.
_OF_QM9_ENERGY = {"dataset_factory.references", "dataset_factory.per_atom", "model.readout"}
# What one command asks for, not the run: never taken from a checkpoint.
_OF_THE_COMMAND = {
    *("checkpoint", "resume", "model_name", "checkpoint_dir"),
    *("time_dataloader", "verbose", "quiet", "log_level", "json", "device", "bench.profile_dir"),
}
# What may change on the way: how long, how it is computed, where results go.
_FREE = {
    *_OF_THE_COMMAND,
    *("bench.num_epochs", "bench.backend", "bench.num_workers", "num_workers", "threads"),
    "bench.collective_timeout_s",
    *("bench.use_wandb", "bench.use_tensorboard", "project", "run_name", "output_dir"),
    *("validation", "checkpoint_epochs", _UNIT),
}
# Two values of these may mean the same (a folder that moved, a default by its name, plain eager
# and compiled steps). Whether the run is still the same shows when it is built.
_SHOWN_LATER = {
    *("dataset_factory.root", "dataset_factory.splits", OPTIONS_KEY),
    *("dataset_factory.references", "dataset_factory.per_atom", _USE_QM9_ENERGY),
    *("dataset_factory.max_num_atoms", "model.num_filters", "model.readout", "model.filter"),
    *("bench.replication_factor", "bench.gradient_accumulation"),  # others make the same updates
    *("bench.half_precision", "limit"),
}


@dataclass(frozen=True, slots=True)
class SavedRun:
    """What a checkpoint says about its run.

    Args:
        directory: Where it is.
        settings: Those that the run was started with, nested like a config file.
        form: The target, its unit and the form in which it is learnt, by dotted name. A run keeps
            what it was begun with, whatever another version would choose by itself.
        epochs_done: Whole epochs.
        is_between: Whether a further epoch was begun.
    """

    directory: Path
    settings: dict[str, Any]
    form: dict[str, Any]
    epochs_done: int
    is_between: bool


def read_saved(settings: Settings) -> SavedRun | None:
    """Return the run that `settings` ask to continue; None if there is no checkpoint.

    Raises:
        CheckpointError: It cannot be read, or every generation of it is damaged.
    """
    directory = settings.checkpoint_dir / settings.model_name
    if not list_generations(directory):
        return None
    facts = read_newest(directory).facts
    try:
        return SavedRun(
            directory=directory,
            settings=_nested(_known(facts["settings"])),
            form=_target_form(facts),
            epochs_done=int(facts["epoch"]),
            is_between=bool(facts["sums"]["steps"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"{directory} holds no run of this benchmark ({type(error).__name__}: {error}); name "
            "one that it saved"
        ) from error


def refuse_contradictions(settings: Settings, saved: SavedRun) -> None:
    """Refuse flags that cannot be true of a continued run.

    Raises:
        CheckpointError: It names the flags with both values.
    """
    found = [text for key, text in _differing(settings, saved) if key not in _SHOWN_LATER]
    if found:
        raise CheckpointError(
            f"{' and '.join(found)} cannot change when {saved.directory} is continued; leave that "
            "out (of config files, too), or begin anew under another --model_name"
        )


def keep_run_name(settings: Settings, saved: SavedRun) -> Settings:
    """Return the settings with the name of the run, also where a config file asks for any name."""
    if settings.run_name is not None:
        return settings
    return dataclasses.replace(settings, run_name=saved.settings.get("run_name"))


def keep_target_form(settings: Settings, saved: SavedRun) -> Settings:
    """Return the settings with the form of the target spelled out, where no flag says another."""
    now, before = _flat(settings.to_dict()), _flat(saved.settings)
    # A flag that asks for another form must show its effect, or it would be ignored unheard.
    is_other = now[_USE_QM9_ENERGY] != before.get(_USE_QM9_ENERGY, now[_USE_QM9_ENERGY])
    groups: dict[str, dict[str, Any]] = {}
    for key, value in saved.form.items():
        if now[key] == before.get(key) and not (is_other and key in _OF_QM9_ENERGY):
            group, _, name = key.rpartition(".")
            groups.setdefault(group, {})[name] = value
    changed = {
        group: dataclasses.replace(getattr(settings, group), **values)
        for group, values in groups.items()
    }
    return dataclasses.replace(settings, **changed)


def doubtful_flags(settings: Settings, saved: SavedRun) -> list[str]:
    """Return the flags, with both values, that may be why a run turns out to be another one."""
    return [text for key, text in _differing(settings, saved) if key in _SHOWN_LATER]


def _differing(settings: Settings, saved: SavedRun) -> list[tuple[str, str]]:
    """Return key and text of every setting that the checkpoint has another value of."""
    now, before = _flat(settings.to_dict()), _flat(saved.settings)
    found = []
    for key, value in before.items():
        if key in _FREE or now[key] == value:
            continue
        if key == _TARGET and _is_same_target(now[key], saved.form[key]):
            continue
        if key == OPTIONS_KEY:
            found += [(key, text) for text in _differing_options(now[key], value)]
        else:
            found.append((key, _both(_flag(key), now[key], saved.form.get(key, value))))
    return found


def _differing_options(now: Any, before: Any) -> list[str]:
    default = spell_options(Options().to_dict())
    now, before = ({**default, **(_spelled_options(values) or {})} for values in (now, before))
    return [
        _both(f"--{OPTIONS_KEY}.{name}", _lower(now[name]), _lower(before[name]))
        for name in default
        if now[name] != before[name]
    ]


def _lower(value: Any) -> Any:
    """Return a choice as people write it: the parser has capital letters."""
    return value.lower() if isinstance(value, str) and value.isupper() else value


def _both(flag: str, now: Any, before: Any) -> str:
    return f"{flag} {_shown(now)} (the checkpoint has {_shown(before)})"


def _flag(key: str) -> str:
    shorts = {nested: short for short, nested in short_names().items()}
    return f"--{shorts.get(key, key)}"


def _shown(value: Any) -> str:
    """Write a value as the command line takes it."""
    return value if isinstance(value, str) else json.dumps(value)


def _known(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a checkpoint by dotted name, without those of the command.

    Other versions may have had settings that this one does not know.
    """
    known = types_by_key()
    flat = {
        key: value
        for key, value in _flat(values).items()
        if key in known and key not in _OF_THE_COMMAND
    }
    if flat.get(OPTIONS_KEY) is not None:
        flat[OPTIONS_KEY] = _spelled_options(flat[OPTIONS_KEY])
    return flat


def _spelled_options(values: Any) -> Any:
    """Return the options that are not the default, as the parser takes them."""
    if not isinstance(values, Mapping):
        return None
    default = Options().to_dict()
    spelled = spell_options({n: v for n, v in values.items() if n in default})
    return {name: spelled[name] for name in spelled if values[name] != default[name]}


def _target_form(facts: Mapping[str, Any]) -> dict[str, Any]:
    transform = facts["transform"]
    return {
        _TARGET: transform["target"],
        _UNIT: transform["unit"] or None,
        "model.readout": facts["model"]["readout"],
        "dataset_factory.per_atom": transform["per_atom"],
        "dataset_factory.references": _kind_of_references(transform),
    }


def _is_same_target(now: Any, before: str) -> bool:
    """Whether both name one target: published names and numbers of columns are understood."""
    from torchkiln.datasets.molecules._published_targets import find_target

    text = str(now)
    return text.lower() == before.lower() or find_target(text) == before


def _kind_of_references(transform: Mapping[str, Any]) -> str:
    from torchkiln.datasets.molecules._published_targets import ATOM_REFERENCES_EV

    energies = {int(z): energy for z, energy in transform["references"].items()}
    if not energies:
        return "none"
    return "atoms" if energies == ATOM_REFERENCES_EV.get(transform["target"]) else "fitted"


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested settings by dotted name; options stay one value."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping) and name in ("dataset_factory", "bench", "model"):
            flat.update({f"{name}.{inner}": entry for inner, entry in value.items()})
        else:
            flat[name] = value
    return flat


def _nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for key, value in flat.items():
        group, _, name = key.rpartition(".")
        (nested.setdefault(group, {}) if group else nested)[name] = value
    return nested
