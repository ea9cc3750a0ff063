"""Settings that ship with Torchkiln: `--preset NAME`.

The files lie in `presets/` of each application, and so in the wheel. In the repository they are
links to the files of `configs/`: each is written once.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path

from torchkiln.core import OptionsError
from torchkiln.core._near_miss import did_you_mean

_FLAG = "--preset"


def preset_names(application: str) -> list[str]:
    """Return the presets of an application, such as "schnet"."""
    return sorted(path.stem for path in _folder(application).glob("*.yml"))


def preset_path(application: str, name: str) -> Path:
    """Return the file of a preset.

    Raises:
        OptionsError: There is no such preset; the message names those that there are.
    """
    names = preset_names(application)
    if name not in names:
        near = did_you_mean(name, names, otherwise=f"there are {', '.join(names)}")
        raise OptionsError(f"there is no preset {name!r}; {near}")
    return _folder(application) / f"{name}.yml"


def preset_help(application: str) -> str:
    """Return one line a preset, made of the first sentence in its file."""
    names = preset_names(application)
    width = max(map(len, names))
    lines = [f"  {name:<{width}}  {_first_sentence(application, name)}" for name in names]
    return "\n".join(["presets:", *lines])


def split_presets(args: list[str]) -> tuple[list[str], list[str]]:
    """Return the names behind all `--preset`, and the other arguments in their order.

    Raises:
        OptionsError: A `--preset` has no name behind it.
    """
    names, others = [], []
    rest = iter(args)
    for arg in rest:
        if arg == _FLAG:
            names.append(next(rest, ""))
        elif arg.startswith(f"{_FLAG}="):
            names.append(arg.removeprefix(f"{_FLAG}="))
        else:
            others.append(arg)
    if "" in names:
        raise OptionsError(f"{_FLAG} needs a name, such as {_FLAG} quick")
    return names, others


def _folder(application: str) -> Path:
    return Path(__file__).parent / application / "presets"


def _first_sentence(application: str, name: str) -> str:
    """Return the beginning of the comment at the top of a file, up to a full stop."""
    lines = (_folder(application) / f"{name}.yml").read_text(encoding="utf-8").splitlines()
    head = itertools.takewhile(lambda line: line.strip("# "), lines)
    text = " ".join(line.strip("# ") for line in head)
    return re.split(r"(?<=\.)\s", text, maxsplit=1)[0]
