"""The command line: hydra's `group.name=value`, as CosmicTagger has it, or `--group.name value`."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from jsonargparse import ArgumentError, ArgumentParser

from torchkiln.apps._command_line import make_base_parser, readable
from torchkiln.apps.cosmic._resumed_arguments import saved_arguments
from torchkiln.apps.cosmic._settings import Settings
from torchkiln.core import OptionsError
from torchkiln.core._config_flags import check_config_flags

_DESCRIPTION = """Train CosmicTagger's UResNet2D to find the pixels of a neutrino among those of
cosmic rays, on larcv3 files or on generated events; or let a trained one find them."""

_EPILOG = """examples:
  {prog} --config configs/cosmic_quick.yml
  {prog} mode=train run.compute_mode=IPU run.id=first data.downsample=16
  {prog} mode=train mode.optimizer.name=rmsprop network.network_depth=4
  {prog} mode=inference run.id=first --file cosmic_tagging_light.h5
  {prog} mode=iotest --file cosmic_tagging_light.h5
  {prog} mode=fit run.compute_mode=IPU data.downsample=1

`group.name=value` and `--group.name value` are the same. They win over config files."""

_SHORT = {"mode": "mode.name", "file": "data.file"}
_ASSIGNMENT = re.compile(r"[a-z_]+(\.[a-z_]+)*=.*", re.DOTALL)


def read_settings(args: Sequence[str], prog: str = "cosmic_tagger.py") -> Settings:
    """Return what a command line asks for; `--help` and `--print_config` print and exit.

    A run that is continued has the settings of its checkpoint, but for those that are given.

    Raises:
        OptionsError: A flag, key or value is unknown or wrong; the message says which.
    """
    parser = make_parser(prog)
    spelled = check_config_flags([_spelled(arg) for arg in args])
    settings = _build(parser, spelled)
    if settings.mode.resume:
        settings = _build(parser, [*saved_arguments(settings), *spelled])
    return settings


def _build(parser: ArgumentParser, spelled: list[str]) -> Settings:
    try:
        built = parser.instantiate(parser.parse_args(spelled))
    except (ArgumentError, ValueError, RecursionError) as error:
        raise OptionsError(readable(error)) from error
    except TypeError as error:  # the parser takes an empty group for one
        raise OptionsError(
            "a setting or a group of settings in a config file has no value; write one behind it, "
            "or leave the line out"
        ) from error
    return Settings(**{entry.name: built[entry.name] for entry in dataclasses.fields(Settings)})


def make_parser(prog: str) -> ArgumentParser:
    """Return the parser of `--group.name value`."""
    parser = make_base_parser(prog, _DESCRIPTION, _EPILOG.format(prog=prog), allow_abbrev=False)
    parser.add_class_arguments(Settings, sub_configs=False)
    return parser


def _spelled(arg: str) -> str:
    """Return hydra's form, and short names, as the parser has them."""
    if _ASSIGNMENT.fullmatch(arg):
        arg = f"--{arg}"
    if not arg.startswith("--"):
        return arg
    name, equals, value = arg.removeprefix("--").partition("=")
    return f"--{_SHORT.get(name, name)}{equals}{value}"
