"""The command line: hydra's `group.name=value`, as CosmicTagger has it, or `--group.name value`."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import re
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from jsonargparse import ArgumentError, ArgumentParser

from torchkiln.apps._command_line import (
    EXIT_CODES,
    explain_print_config,
    make_base_parser,
    readable,
)
from torchkiln.apps._flags import checked_flags, is_switch, with_switch_values
from torchkiln.apps._presets import preset_help, preset_names, preset_path, split_presets
from torchkiln.apps.cosmic._resumed_arguments import saved_arguments
from torchkiln.apps.cosmic._settings import Settings
from torchkiln.core import OptionsError
from torchkiln.core._config_flags import check_config_flags

_DESCRIPTION = """Train CosmicTagger's UResNet2D to find the pixels of a neutrino among those of
cosmic rays, on larcv3 files or on generated events; or let a trained one find them."""

_EPILOG = """examples:
  {prog} --preset quick
  {prog} mode=train run.compute_mode=IPU run.id=first data.downsample=16
  {prog} mode=train mode.optimizer.name=rmsprop network.network_depth=4
  {prog} mode=inference run.id=first --file cosmic_tagging_light.h5
  {prog} mode=iotest --file cosmic_tagging_light.h5
  {prog} mode=fit run.compute_mode=IPU data.downsample=1
  {prog} mode=fit run.compute_mode=IPU mode.memory_limit=2GB mode.stages=2

{presets}

`group.name=value` and `--group.name value` are the same. They win over config files, and config
files win over presets.

{exit_codes}"""

_APPLICATION = "cosmic"
_SHORT = {
    "mode": "mode.name",
    "file": "data.file",
    "quiet": "run.quiet",
    "log_level": "run.log_level",
}
# Settings of the network are checked where it lives.
_NETWORK = "--network."
_ASSIGNMENT = re.compile(r"[a-z_]+(\.[a-z_]+)*=.*", re.DOTALL)


def read_settings(args: Sequence[str], prog: str = "cosmic_tagger.py") -> Settings:
    """Return what a command line asks for; `--help` and `--print_config` print and exit.

    A run that is continued has the settings of its checkpoint, but for those that are given.

    Raises:
        OptionsError: A flag, key or value is unknown or wrong; the message says which.
    """
    parser = make_parser(prog)
    kinds = types_by_key()
    switches = {f"--{key}" for key, kind in kinds.items() if is_switch(kind)}
    presets, flags = split_presets(with_switch_values([_spelled(arg) for arg in args], switches))
    flags = list(checked_flags(flags, parser._option_string_actions, groups=_NETWORK))
    files = [f"--config={preset_path(_APPLICATION, name)}" for name in presets]
    spelled = check_config_flags([*files, *_configs_first(flags)])
    settings = _build(parser, spelled, kinds)
    if settings.mode.resume:
        settings = _build(parser, [*saved_arguments(settings), *spelled], kinds)
    return settings


def _build(parser: ArgumentParser, spelled: list[str], kinds: Mapping[str, Any]) -> Settings:
    try:
        built = parser.instantiate(parser.parse_args(spelled))
    except (ArgumentError, ValueError, RecursionError) as error:
        raise OptionsError(readable(error, kinds)) from error
    except TypeError as error:  # the parser takes an empty group for one
        raise OptionsError(
            "a setting or a group of settings in a config file has no value; write one behind it, "
            "or leave the line out"
        ) from error
    return Settings(**{entry.name: built[entry.name] for entry in dataclasses.fields(Settings)})


def make_parser(prog: str) -> ArgumentParser:
    """Return the parser of `--group.name value`."""
    call = f"python3 examples/{prog}" if prog.endswith(".py") else prog
    epilog = _EPILOG.format(prog=call, presets=preset_help(_APPLICATION), exit_codes=EXIT_CODES)
    parser = make_base_parser(prog, _DESCRIPTION, epilog, allow_abbrev=False)
    parser.usage = "%(prog)s [group.name=value ...]"
    parser.add_argument(
        "--preset",
        default=argparse.SUPPRESS,
        metavar="NAME",
        help=f"Settings that ship with Torchkiln: {', '.join(preset_names(_APPLICATION))}.",
    )
    parser.add_class_arguments(Settings, sub_configs=False)
    explain_print_config(parser)
    return parser


@functools.cache
def types_by_key() -> dict[str, Any]:
    """Return the type of every setting by its dotted name."""
    return _types_in(Settings, "")


def _types_in(group: type, prefix: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, kind in typing.get_type_hints(group).items():
        if dataclasses.is_dataclass(kind):
            found.update(_types_in(typing.cast(type, kind), f"{prefix}{name}."))
        else:
            found[f"{prefix}{name}"] = kind
    return found


def _configs_first(flags: list[str]) -> list[str]:
    """Return the flags with config files before all others, so that flags win over them."""
    return sorted(flags, key=lambda flag: not flag.startswith("--config="))


def _spelled(arg: str) -> str:
    """Return hydra's form, and short names, as the parser has them."""
    if _ASSIGNMENT.fullmatch(arg):
        arg = f"--{arg}"
    if not arg.startswith("--"):
        return arg
    name, equals, value = arg.removeprefix("--").partition("=")
    return f"--{_SHORT.get(name, name)}{equals}{value}"
