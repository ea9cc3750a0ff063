"""From the words of a command line to the function that they name. No torch up here.

Commands are a tree: a name stands for a function, whose parameters are flags, or for a group of
further commands. The parser of a command is made only if that command is called.
"""

from __future__ import annotations

import inspect
import json
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from jsonargparse import ArgumentError, ArgumentParser

from torchkiln.apps._command_line import (
    EXIT_CODES,
    explain_print_config,
    fill_paragraphs,
    help_width,
    make_base_parser,
    readable,
    speaking,
)
from torchkiln.apps._flags import checked_flags, is_switch, with_switch_values
from torchkiln.core import OptionsError
from torchkiln.core._config_flags import check_config_flags
from torchkiln.core._near_miss import did_you_mean
from torchkiln.core._plain_warnings import LogLevel

Command = Callable[..., int | None]
Commands = Mapping[str, Any]  # names -> Command or Commands; "_help" -> what a group is for
_HELP = ("-h", "--help")
# Names of the flags that every command has, with their types.
COMMON: dict[str, Any] = {"quiet": bool, "log_level": LogLevel}


@dataclass(frozen=True, slots=True)
class Called:
    """What a command line calls.

    Args:
        prog: The words up to the command, such as "torchkiln data qm9".
        target: A command, or the group at which the words end.
        args: What follows.
    """

    prog: str
    target: Command | Commands
    args: list[str]


def find_command(commands: Commands, args: list[str], prog: str) -> Called:
    """Return the command that the first words name, and what follows them.

    Raises:
        OptionsError: There is no such command; the message says what was probably meant.
    """
    target: Command | Commands = commands
    rest = list(args)
    while isinstance(target, Mapping) and rest and rest[0] not in _HELP:
        name = rest[0]
        names = command_names(target)
        if name.startswith("-"):
            raise OptionsError(
                f"unknown flag {name}; the command comes first: {prog} {names[0]} ..., and its "
                "flags follow it"
            )
        if name not in names:
            otherwise = f"there are {', '.join(names)}"
            hint = did_you_mean(name, names, before=f"{prog} ", otherwise=otherwise)
            raise OptionsError(f"there is no command {name!r}; {hint}")
        target, rest, prog = target[name], rest[1:], f"{prog} {name}"
    return Called(prog, target, rest)


def command_names(commands: Commands) -> list[str]:
    """Return the names in a group, in their order."""
    return [name for name in commands if name != "_help"]


def group_help(commands: Commands, prog: str, description: str) -> str:
    """Return the help of a group: what its commands are for, and how they end."""
    names = command_names(commands)
    column = max(map(len, names)) + 2
    lines = [f"  {name:<{column}}{_first_sentence(commands[name])}" for name in names]
    parts = [
        f"usage: {prog} COMMAND [--FLAG VALUE ...]",
        description,
        "\n".join(["commands:", *lines]),
        f"`{prog} COMMAND --help` explains a command and its flags.",
        EXIT_CODES,
    ]
    return fill_paragraphs("\n\n".join(parts), help_width())


def run_function(command: Command, args: list[str], prog: str, words_for: str = "") -> int:
    """Read the flags of a command, call it, and return its exit code; `--help` prints and exits.

    Args:
        command: What to call.
        args: Its flags.
        prog: The words that named it.
        words_for: The parameter that words without a flag belong to.

    Raises:
        OptionsError: A flag or a value is wrong; the message says what was probably meant.
    """
    kinds = flag_types(command)
    parser = make_parser(command, prog)
    switches = {f"--{name}" for name, kind in kinds.items() if is_switch(kind)}
    spelled = with_switch_values(args, switches, words_may_follow=bool(words_for))
    known = parser._option_string_actions
    # The parser adds to a list with a plus.
    flag = f"--{words_for}+" if f"--{words_for}+" in known else f"--{words_for}"
    flags = list(checked_flags(spelled, known, words_for=flag if words_for else ""))
    flags = [_as_list(flag, kinds) for flag in flags]
    try:
        read = parser.instantiate(parser.parse_args(check_config_flags(flags)))
    except (ArgumentError, ValueError) as error:
        raise OptionsError(readable(error, kinds)) from error
    values = {name: read[name] for name in inspect.signature(command).parameters}
    with speaking(quiet=read["quiet"], log_level=read["log_level"]):
        return command(**values) or 0


def _as_list(flag: str, kinds: Mapping[str, Any]) -> str:
    """Let one word stand for a list of one: `--workloads cnn`."""
    name, _, value = flag.removeprefix("--").partition("=")
    is_word = typing.get_origin(kinds.get(name)) is list and not value.startswith("[")
    return f"--{name}={json.dumps([value])}" if is_word else flag


def make_parser(command: Command, prog: str) -> ArgumentParser:
    """Return the parser of a command: its parameters as flags, and those that all commands have."""
    described = inspect.getdoc(command) or ""
    parser = make_base_parser(
        prog, described.partition("\nArgs:")[0].strip(), EXIT_CODES, allow_abbrev=False
    )
    parser.usage = "%(prog)s [--FLAG VALUE ...]"
    parser.add_function_arguments(command, as_group=False, as_positional=False)
    explain_print_config(parser)
    parser.add_argument(
        "--quiet",
        type=bool,
        default=False,
        help="Tell less: no progress and no messages, only results, warnings and errors.",
    )
    parser.add_argument(
        "--log_level",
        type=LogLevel,
        default="warning",
        help="Which log messages to show: those of this level and above; error hides warnings.",
    )
    return parser


def flag_types(command: Command) -> dict[str, Any]:
    """Return the type of every flag of a command by its name."""
    kinds = typing.get_type_hints(command)
    return {**{name: kinds[name] for name in inspect.signature(command).parameters}, **COMMON}


def _first_sentence(command: Command | Commands) -> str:
    if isinstance(command, Mapping):
        return str(command["_help"])
    paragraph = (inspect.getdoc(command) or "").partition("\n\n")[0]
    return " ".join(paragraph.split())
