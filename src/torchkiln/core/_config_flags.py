"""Settings of `--config` that jsonargparse reads itself, looked through before it does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torchkiln.core import OptionsError, parse_yaml, read_text

_FLAG = "--config"


def check_config_flags(args: Sequence[str]) -> list[str]:
    """Look through the settings of all `--config VALUE` and `--config=VALUE`.

    A value is a file or, as jsonargparse has it, the settings themselves: `{run: {id: a}}`. What
    can be read only once (a pipe, as in `--config <(command)`) is replaced by what it holds.

    Returns:
        The arguments for jsonargparse.

    Raises:
        OptionsError: if settings are missing, no text, no YAML, or would grow without end when
            they are read; it names the file and the line.
    """
    checked: list[str] = []
    rest = iter(args)
    for arg in rest:
        if arg == _FLAG:
            value = next(rest, "")
        elif arg.startswith(f"{_FLAG}="):
            value = arg.removeprefix(f"{_FLAG}=")
        else:
            checked.append(arg)
            continue
        # In one argument: settings of several lines may begin with dashes.
        checked.append(f"{_FLAG}={_check(value)}" if value else arg)
    return checked


def _check(value: str) -> str:
    """Return what jsonargparse gets instead of a value; usually the value."""
    path = Path(value).expanduser()
    if not _exists(path):
        _check_inline(value, path)
        return value
    text = read_text(path, error=OptionsError)
    if not isinstance(parse_yaml(text, path, error=OptionsError), dict):
        raise OptionsError(f"{path} holds no names with values, as in `seed: 3`")
    return value if path.is_file() else text


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # settings may be too long for a name, or hold a zero
        return False


def _check_inline(value: str, path: Path) -> None:
    if not any(mark in value for mark in ":{\n"):
        read_text(path, error=OptionsError)  # says that there is no such file
    if not isinstance(parse_yaml(value, _FLAG, error=OptionsError), dict):
        raise OptionsError(
            f"{_FLAG} {value!r} is neither a file nor names with values, as in '{{seed: 3}}'"
        )
