"""Command lines as people write them, for a parser that wants a flag and a value for everything."""

from __future__ import annotations

import json
from collections.abc import Sequence


def spell_names(args: Sequence[str]) -> list[str]:
    """Let names of runs, and `--json`, stand alone: the parser wants a flag for each.

    `show NAME` becomes `show --name NAME`, `compare A B` becomes `compare --names '["A", "B"]'`.
    """
    command, rest = list(args[:1]), list(args[1:])
    names: list[str] = []
    while rest and not rest[0].startswith("-"):
        names.append(rest.pop(0))
    if names and command == ["show"]:
        command += [f"--name={name}" for name in names]
    elif names and command == ["compare"]:
        command.append(f"--names={json.dumps(names)}")
    else:
        rest = [*names, *rest]
    spelled = []
    for position, arg in enumerate(rest):
        following = rest[position + 1 : position + 2]
        bare = arg == "--json" and following not in (["true"], ["false"])
        spelled += [arg, "true"] if bare else [arg]
    return [*command, *spelled]
