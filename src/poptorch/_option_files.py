"""Options from text: JSON objects, and files of setter calls."""

from __future__ import annotations

import enum
import os
from pathlib import Path
from typing import Any

import torch

from poptorch import enums
from poptorch._errors import ConfigFileError
from poptorch._option_store import OptionStore
from torchkiln.core import OptionsError, StoreError, parse_json, read_text, to_choice

# What files of setter calls may name.
_scope: dict[str, Any] = {"torch": torch}


def let_files_name(**modules: Any) -> None:
    """Put modules into the scope of files of setter calls, under these names."""
    _scope.update(modules)


def apply_json(options: OptionStore, string: str, source: str) -> None:
    """Call the setters that a JSON object names; `source` says in errors where it came from.

    Raises:
        ValueError: if it is not a JSON object.
        AttributeError: for a setter or member of an enumeration that does not exist.
    """
    entries = parse_json(string, source, error=OptionsError)
    if not isinstance(entries, dict):
        raise ValueError(
            f'{source} must be a JSON object like {{"deviceIterations": 4}}, got {string[:60]!r}'
        )
    for name, argument in entries.items():
        setter: Any = options
        for part in name.split("."):
            setter = getattr(setter, part)
        try:
            if isinstance(argument, list):
                setter(*argument)
            else:
                setter(_enum_member(argument))
        except TypeError as error:
            raise ValueError(f"{source}: {name} does not take {argument!r} ({error})") from error


def apply_file(options: OptionStore, filepath: str | os.PathLike[str]) -> None:
    """Execute a file of setter calls, one a line, with `poptorch` and `torch` in scope.

    Raises:
        ConfigFileError: if it is no text, or a line cannot be executed.
        FileNotFoundError: if it is not there.
    """
    path = Path(filepath)
    if not path.exists():
        raise FileNotFoundError(f"there is no file of options {path}")
    try:
        text = read_text(path)
    except StoreError as error:
        raise ConfigFileError(str(error)) from error
    lines = [line.strip() for line in text.splitlines()]
    effective = [line for line in lines if line and not line.startswith("#")]
    for number, line in enumerate(effective, start=1):
        try:
            exec(f"options.{line}", {**_scope, "options": options})
        except Exception as error:
            raise ConfigFileError(
                f"{type(error).__name__} at line {number} of {path.name}: {error}\n> {line}"
            ) from error


def _enum_member(argument: Any) -> Any:
    if not isinstance(argument, str) or argument.count(".") != 1:
        return argument
    kind, member = argument.split(".")
    candidate = getattr(enums, kind, None)
    if not isinstance(candidate, type) or not issubclass(candidate, enum.Enum):
        return argument
    return candidate[to_choice(candidate.__members__, member, kind, AttributeError)]
