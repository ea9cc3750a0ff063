"""Config files that jsonargparse reads itself, looked through before it does."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from torchkiln.core import OptionsError, parse_yaml, read_text


def check_config_flags(args: Sequence[str]) -> None:
    """Look through the files of all `--config FILE` and `--config=FILE`.

    Raises:
        OptionsError: if one is missing, no text, no YAML, or would grow without end when it is
            read; it names the file and the line.
    """
    for arg, following in itertools.pairwise([*args, ""]):
        if arg == "--config" and following:
            value = following
        elif arg.startswith("--config="):
            value = arg.removeprefix("--config=")
        else:
            continue
        path = Path(value).expanduser()
        values = parse_yaml(read_text(path, error=OptionsError), path, error=OptionsError)
        if not isinstance(values, dict):
            raise OptionsError(f"{path} holds no names with values, as in `seed: 3`")
