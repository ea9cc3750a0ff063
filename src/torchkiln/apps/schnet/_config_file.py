"""Config files of the benchmark, and the names that settings go by."""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jsonargparse import get_loader as get_value_loader

from torchkiln.apps.schnet._settings import Settings
from torchkiln.core import Options, OptionsError, check_yaml, read_text
from torchkiln.core._near_miss import did_you_mean

OPTIONS_KEY = "dataset_factory.options"
_ENUM_OPTIONS = (
    "input_grouping",
    "output_mode",
    "reduction",
    "reduction_order",
    "backend",
    "precision",
    "pipeline_schedule",
)


@functools.cache
def types_by_key() -> dict[str, Any]:
    """Return the type of every setting by its dotted name."""
    found: dict[str, Any] = {}
    for name, kind in typing.get_type_hints(Settings).items():
        if dataclasses.is_dataclass(kind):
            inner = typing.get_type_hints(kind)
            found.update({f"{name}.{key}": inner[key] for key in field_names(kind)})  # type: ignore[arg-type]
        else:
            found[name] = kind
    return found


@functools.cache
def short_names() -> dict[str, str]:
    """Return the nested key behind each short name, where only one group has that name."""
    top = field_names(Settings)
    found: dict[str, list[str]] = {}
    for key in types_by_key():
        group, _, name = key.rpartition(".")
        if group and name not in top:
            found.setdefault(name, []).append(key)
    return {name: keys[0] for name, keys in found.items() if len(keys) == 1}


def read_config(path: str | Path) -> dict[str, Any]:
    """Return the settings in a file, nested, whichever form the file uses.

    Raises:
        OptionsError: It is missing, no mapping, or holds a key that does not exist.
    """
    values = _load_mapping(path)
    shorts, known = short_names(), types_by_key()
    nested: dict[str, Any] = {}
    spelled: dict[str, tuple[str, Any]] = {}
    for name, value in _leaves(values, known):
        key = shorts.get(name, name)
        if key not in known:
            raise OptionsError(f"unknown key {name!r}; {nearest_name(name, known, shorts)}")
        # The parser takes nothing for the default, and then for the value.
        if value is None and type(None) not in typing.get_args(known[key]):
            raise OptionsError(f"{name} has no value; write one behind it, or leave the line out")
        if key in spelled and spelled[key][1] != value:
            other, its_value = spelled[key]
            raise OptionsError(contradiction(other, its_value, name, value))
        spelled[key] = (name, value)
        group, _, last = key.rpartition(".")
        target = nested.setdefault(group, {}) if group else nested
        target[last] = spell_options(value) if key == OPTIONS_KEY else value
    return nested


def read_options(value: str) -> dict[str, Any] | None:
    """Read `--dataset_factory.options`: a file, or a mapping as YAML or JSON."""
    if value == "null":
        return None
    is_text = "{" in value or ":" in value
    return _parse_mapping(value, OPTIONS_KEY) if is_text else _load_mapping(value)


def spell_options(values: Any) -> Any:
    """Check options of the program, and spell enum values as the parser does (EAGER, not eager).

    Raises:
        OptionsError: There is no such option, or it cannot have that value.
    """
    if isinstance(values, str):
        values = _load_mapping(values)
    if not isinstance(values, Mapping):
        return values
    try:
        Options.from_dict(values)
    except OptionsError as error:
        raise OptionsError(f"{OPTIONS_KEY}: {error}") from error
    return {name: spell_option(name, value) for name, value in values.items()}


def spell_option(name: str, value: Any) -> Any:
    """Return the value of one option as the parser spells it."""
    known = field_names(Options)
    if name.split(".")[0] not in known:
        hint = did_you_mean(name, known, otherwise=f"known are {', '.join(known)}")
        raise OptionsError(f"{OPTIONS_KEY}: unknown option {name!r}; {hint}")
    return value.upper() if name in _ENUM_OPTIONS and isinstance(value, str) else value


def merge_settings(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with what `over` says, group by group."""
    merged = dict(base)
    for name, value in over.items():
        if isinstance(value, dict) and isinstance(merged.get(name), dict):
            value = merge_settings(merged[name], value)
        merged[name] = value
    return merged


def nearest_name(
    name: str, known: Mapping[str, Any], shorts: Mapping[str, str], dash: str = ""
) -> str:
    """Say what was probably meant by a name that does not exist."""
    # A name of two groups (seed) has no short form: both are named.
    several = [key for key in known if key.rpartition(".")[2] == name]
    otherwise = "--help lists all of them" if dash else "--print_config lists all of them"
    # Each setting by one of its names: the nested one if that is what was written.
    nested = [key for key in known if "." in name or key not in shorts.values()]
    candidates = several or [*(shorts if "." not in name else ()), *nested]
    return did_you_mean(name, candidates, before=dash, otherwise=otherwise)


def contradiction(first: str, first_value: Any, second: str, second_value: Any) -> str:
    """Say that both names of a setting were used for different values."""
    return (
        f"{first} ({first_value}) and {second} ({second_value}) are two names of one setting "
        "with different values; give one of them"
    )


def _load_mapping(path: str | Path) -> dict[str, Any]:
    return _parse_mapping(read_text(Path(path).expanduser(), error=OptionsError), path)


def _parse_mapping(text: str, label: object) -> dict[str, Any]:
    # First, each node once: what aliases would blow up never reaches a loader or the parser.
    check_yaml(text, label, error=OptionsError)
    try:
        values = get_value_loader("yaml")(text)  # JSON is YAML, too
    except Exception as error:  # whatever the loader of jsonargparse raises
        raise OptionsError(f"neither YAML nor JSON: {error}") from error
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise OptionsError(f"expected names with values, got {str(values)[:60]!r}")
    return values


def _leaves(values: Mapping[str, Any], known: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield (dotted name, value) of every setting in a config file."""
    groups = {key.rpartition(".")[0] for key in known} - {""}
    for name, value in values.items():
        if name not in groups:
            yield str(name), value
            continue
        if value is None:
            continue
        if not isinstance(value, Mapping):
            raise OptionsError(f"{name} is a group of settings, got {str(value)[:60]}")
        for inner, entry in value.items():
            yield f"{name}.{inner}", entry


def field_names(kind: type) -> list[str]:
    return [entry.name for entry in dataclasses.fields(kind)]
