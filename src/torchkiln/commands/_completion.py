"""`torchkiln completion`: scripts for bash, zsh and fish that complete what is typed.

The scripts are made of the commands and the types of their flags, and hold all words themselves:
pressing Tab starts no Python.
"""

from __future__ import annotations

import shlex
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torchkiln.apps._presets import preset_names
from torchkiln.apps._type_words import choices_of
from torchkiln.commands._dispatch import Commands, command_names, flag_types

Shell = Literal["bash", "zsh", "fish"]
_PROG = "torchkiln"
_WITHOUT_VALUE = ("help", "version")
_OTHER_FLAGS: dict[str, Any] = {"config": Path, "help": None}


@dataclass(frozen=True, slots=True)
class Node:
    """What can follow the words of one command.

    Args:
        words: Those that name it, without the program's own.
        commands: Further commands.
        flags: Names of flags, each with the words it takes; None stands for a file, nothing for
            anything else.
    """

    words: tuple[str, ...]
    commands: tuple[str, ...]
    flags: Mapping[str, tuple[str, ...] | None]

    @property
    def path(self) -> str:
        return " ".join(self.words)


def completion_script(shell: Shell, commands: Commands) -> str:
    """Return the script for a shell."""
    nodes = list(_nodes(commands, ()))
    if shell == "fish":
        return _fish(nodes)
    script = _bash(nodes)
    # zsh understands bash's completions after these words.
    zsh = "autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n"
    return zsh + script if shell == "zsh" else script


def _nodes(commands: Commands, words: tuple[str, ...]) -> Iterator[Node]:
    names = command_names(commands)
    if words == ("bench",):  # a command itself, with one that is not in the table
        yield Node(words, (*names, "cosmic"), _flags(_bench_types()))
        yield Node((*words, "cosmic"), (), _flags(_cosmic_types()))
    else:
        yield Node(
            words, tuple(names), {"--help": ()} if words else {"--help": (), "--version": ()}
        )
    for name in command_names(commands):
        inner = commands[name]
        if isinstance(inner, Mapping):
            yield from _nodes(inner, (*words, name))
            continue
        kinds = flag_types(inner)
        # What may stand alone, without its flag.
        alone = choices_of(kinds["shell"]) if "shell" in kinds else []
        yield Node((*words, name), tuple(alone), _flags(kinds))


def _bench_types() -> dict[str, Any]:
    from torchkiln.apps.schnet._config_file import short_names, types_by_key

    kinds = types_by_key()
    short = {name: kinds[key] for name, key in short_names().items()}
    return {"preset": _one_of(preset_names("schnet")), **kinds, **short}


def _cosmic_types() -> dict[str, Any]:
    from torchkiln.apps.cosmic._arguments import types_by_key

    return {"preset": _one_of(preset_names("cosmic")), **types_by_key()}


def _one_of(words: list[str]) -> Any:
    return Literal[tuple(words)]


def _flags(kinds: Mapping[str, Any]) -> dict[str, tuple[str, ...] | None]:
    return {
        f"--{name}": None if _is_path(kind) else tuple(choices_of(kind)) if kind else ()
        for name, kind in {**kinds, **_OTHER_FLAGS}.items()
    }


def _is_path(kind: Any) -> bool:
    return kind is Path or Path in typing.get_args(kind)


def _bash(nodes: list[Node]) -> str:
    """Return a function that looks at the words before the cursor, and its registration."""
    lines = [
        "# Completion of torchkiln. Load it with: source <(torchkiln completion bash)",
        "_torchkiln() {",
        '  local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}"',
        '  local path="" index',
        "  for ((index = 1; index < COMP_CWORD && index < 3; index++)); do",
        '    case "$path ${COMP_WORDS[index]}" in',
        *(f"      {shlex.quote(' ' + node.path)}) path=' {node.path}' ;;" for node in nodes[1:]),
        "      *) break ;;",
        "    esac",
        "  done",
        "  COMPREPLY=()",
        # A switch needs no value: a dash begins the next flag.
        '  [[ "$word" == -* ]] && before=""',
        '  case "$path $before" in',
    ]
    for node in nodes:
        for flag, words in node.flags.items():
            if words is None:
                reply = 'COMPREPLY=($(compgen -f -- "$word"))'
            elif words:
                reply = f'COMPREPLY=($(compgen -W {shlex.quote(" ".join(words))} -- "$word"))'
            else:
                continue
            place = shlex.quote(f"{' ' + node.path if node.words else ''} {flag}")
            lines.append(f"    {place}) {reply}; return ;;")
    lines += ["  esac", '  case "$path" in']
    for node in nodes:
        follow = shlex.quote(" ".join([*node.commands, *node.flags]))
        place = shlex.quote(" " + node.path if node.words else "")
        lines.append(f'    {place}) COMPREPLY=($(compgen -W {follow} -- "$word")) ;;')
    lines += [
        "  esac",
        # `predict` and `fit` take files that stand alone.
        '  if [[ ${#COMPREPLY[@]} -eq 0 && "$word" != -* ]]; then',
        '    COMPREPLY=($(compgen -f -- "$word"))',
        "  fi",
        "}",
        f"complete -o filenames -F _torchkiln {_PROG}",
    ]
    return "\n".join(lines) + "\n"


def _fish(nodes: list[Node]) -> str:
    """Return one line a command and a flag, each with the words that must stand before it."""
    paths = " ".join(shlex.quote(node.path) for node in nodes[1:])
    lines = [
        "# Completion of torchkiln. Load it with: torchkiln completion fish | source",
        "function __torchkiln_path",
        "    set -l words (commandline -opc)",
        "    set -l path ''",
        "    for word in $words[2..3]",
        '        set -l longer (string trim -- "$path $word")',
        f'        contains -- "$longer" {paths}; or break',
        "        set path $longer",
        "    end",
        '    test "$path" = "$argv[1]"',
        "end",
    ]
    for node in nodes:
        begin = f"complete -c {_PROG} -n \"__torchkiln_path '{node.path}'\""
        if node.commands:
            lines.append(f"{begin} -f -a {shlex.quote(' '.join(node.commands))}")
        for flag, words in node.flags.items():
            name = flag.removeprefix("--")
            if words is None:
                value = " -r -F"
            elif words:
                value = f" -x -a {shlex.quote(' '.join(words))}"
            else:
                value = "" if name in _WITHOUT_VALUE else " -x"
            lines.append(f"{begin} -l {name}{value}")
    return "\n".join(lines) + "\n"
