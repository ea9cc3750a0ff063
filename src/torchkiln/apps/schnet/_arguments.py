"""The command line and the config files of the benchmark, derived from the settings classes.

Two forms are understood, and may be mixed: nested (`--dataset_factory.batch_size 12`) and short
(`--batch_size 12`), on the command line and as keys of a config file. The command line wins over
config files, these win over presets; what comes later wins over what came earlier.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentError, ArgumentParser

from torchkiln.apps._command_line import (
    EXIT_CODES,
    explain_print_config,
    make_base_parser,
    readable,
)
from torchkiln.apps._flags import is_flag, is_switch, with_switch_values
from torchkiln.apps._presets import preset_help, preset_names, preset_path, split_presets
from torchkiln.apps._type_words import choices_of
from torchkiln.apps.schnet._config_file import (
    OPTIONS_KEY,
    contradiction,
    field_names,
    merge_settings,
    nearest_name,
    read_config,
    read_options,
    short_names,
    spell_option,
    spell_options,
    types_by_key,
)
from torchkiln.apps.schnet._resumed_settings import (
    keep_run_name,
    read_saved,
    refuse_contradictions,
)
from torchkiln.apps.schnet._settings import Settings
from torchkiln.core import OptionsError
from torchkiln.core._near_miss import did_you_mean

_DESCRIPTION = """Train SchNet on QM9 or on water clusters, on batches of one fixed size, compiled
once. Ends with a table, plots and a page about throughput and accuracy."""

_EPILOG = """examples:
  {call} {settings}
  {call} {settings} --use_wandb true
  {call} {settings} --num_epochs 1 --profile_dir graph_profile
  {call} --preset quick --limit 5000
  {call} --preset water --num_epochs 3
  {call} --limit 5000 --target gap --checkpoint --model_name gap
  {call} --replication_factor -1   # plain eager PyTorch
  {call} --print_config=comments   # all settings, explained
  {call} --dataset_factory.options.help torchkiln.Options

{presets}

Flags win over config files, and config files win over presets. Every --group.name has the short
form --name where only one group has that name; a config file may use either form too. A bare
--checkpoint means --checkpoint true.

{exit_codes}"""

_APPLICATION = "schnet"


def read_settings(args: Sequence[str], prog: str = "bench.py") -> Settings:
    """Return what a command line asks for; `--help` and `--print_config` print and exit.

    A run that is continued has the settings of its checkpoint, but for those that are given.

    Raises:
        OptionsError: A flag, key or value is unknown or wrong; the message says which.
        CheckpointError: Flags contradict the checkpoint that is to be continued.
    """
    parser = _cached_parser(prog)
    presets, others = split_presets(with_switch_values(args, _switches()))
    config_paths, flags = _split_configs(others)
    flags = list(_checked_flags(flags, parser))
    files = [(f"preset {name}", preset_path(_APPLICATION, name)) for name in presets]
    files += [(f"config file {path}", Path(path)) for path in config_paths]
    merged: dict[str, Any] = {}
    for label, path in files:
        try:
            values = read_config(path)
            parser.parse_object(values)
        except (ArgumentError, OptionsError, RecursionError) as error:
            raise OptionsError(f"{label}: {readable(error, types_by_key())}") from error
        merged = merge_settings(merged, values)
    settings = _build(parser, merged, flags)
    saved = read_saved(settings) if settings.resume else None
    if saved is not None:
        settings = _build(parser, merge_settings(saved.settings, merged), flags)
        refuse_contradictions(settings, saved)
        settings = keep_run_name(settings, saved)
    return settings


def _build(parser: ArgumentParser, values: dict[str, Any], flags: list[str]) -> Settings:
    """Return the settings in `values`, nested, over which `flags` win."""
    values, flags = _join_options(values, flags)
    try:
        base = parser.parse_object(values) if values else None
        built = parser.instantiate(parser.parse_args(flags, namespace=base))
    except (ArgumentError, ValueError, RecursionError) as error:
        raise OptionsError(readable(error, types_by_key())) from error
    return Settings(**{name: getattr(built, name) for name in field_names(Settings)})


def _join_options(values: dict[str, Any], flags: list[str]) -> tuple[dict[str, Any], list[str]]:
    """Make a flag of options in `values` if there are flags of single ones.

    The parser lets single options win over a flag, but not over what it was given as values.
    """
    group, _, name = OPTIONS_KEY.rpartition(".")
    options = values.get(group, {}).get(name)
    if options is None or not any(flag.startswith(f"--{OPTIONS_KEY}.") for flag in flags):
        return values, flags
    others = {key: value for key, value in values[group].items() if key != name}
    return {**values, group: others}, [f"--{OPTIONS_KEY}={json.dumps(options)}", *flags]


@functools.cache
def _cached_parser(prog: str) -> ArgumentParser:
    return make_parser(prog)


def make_parser(prog: str = "bench.py") -> ArgumentParser:
    """Return the parser of the nested flags, with the short ones as aliases."""
    is_script = prog.endswith(".py")
    epilog = _EPILOG.format(
        call=f"python3 {prog}" if is_script else prog,
        settings="--config configs/qm9_packed.yml" if is_script else "--preset packed",
        presets=preset_help(_APPLICATION),
        exit_codes=EXIT_CODES,
    )
    parser = make_base_parser(prog, _DESCRIPTION, epilog)
    parser.usage = "%(prog)s [--preset NAME] [--FLAG VALUE ...]"
    parser.add_argument(
        "--preset",
        default=argparse.SUPPRESS,
        metavar="NAME",
        help=f"Settings that ship with Torchkiln: {', '.join(preset_names(_APPLICATION))}; they "
        "are explained below.",
    )
    parser.add_class_arguments(Settings, sub_configs=True)
    actions = parser._option_string_actions
    for short, key in short_names().items():
        action = actions[f"--{key}"]
        action.option_strings.append(f"--{short}")
        actions[f"--{short}"] = action
    explain_print_config(parser)
    return parser


@functools.cache
def _switches() -> frozenset[str]:
    keys = {key for key, kind in types_by_key().items() if is_switch(kind)}
    shorts = {short for short, key in short_names().items() if key in keys}
    return frozenset(f"--{name}" for name in keys | shorts)


def _split_configs(args: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the paths of config files, and everything else in its order."""
    paths, others = [], []
    rest = iter(args)
    for arg in rest:
        if arg == "--config":
            path = next(rest, None)
            if path is None:
                raise OptionsError("--config needs the path of a file")
            paths.append(path)
        elif arg.startswith("--config="):
            paths.append(arg.removeprefix("--config="))
        else:
            others.append(arg)
    return paths, others


def _checked_flags(args: Sequence[str], parser: ArgumentParser) -> Iterator[str]:
    """Yield the arguments after comparing their names with those that exist."""
    known, shorts = types_by_key(), short_names()
    seen: dict[str, tuple[str, str]] = {}
    rest = iter(args)
    for arg in rest:
        if not is_flag(arg):
            raise OptionsError(f"{arg!r} belongs to no flag; {_meant_by(arg)}")
        flag, has_value, value = arg.partition("=")
        name = flag.lstrip("-")
        if flag == "--print_config":
            # The seed's word; the parser's own has another name since its version 4.49.
            yield arg.replace("skip_null", "skip_unset")
            continue
        if name.startswith(f"{OPTIONS_KEY}.") and name != f"{OPTIONS_KEY}.help":
            option = name.removeprefix(f"{OPTIONS_KEY}.")
            value = value if has_value else next(rest, "")
            yield f"{flag}={spell_option(option, value)}"
            continue
        if flag not in parser._option_string_actions:
            raise OptionsError(f"unknown flag {flag}; {nearest_name(name, known, shorts, '--')}")
        key = shorts.get(name, name)
        if key not in known:
            yield from _with_its_value(arg, rest)
            continue
        if not has_value:
            value = _following(flag, rest)
        if key in seen and seen[key][0] != name and seen[key][1] != value:
            raise OptionsError(contradiction(f"--{seen[key][0]}", seen[key][1], flag, value))
        seen[key] = (name, value)
        if key == OPTIONS_KEY:
            value = json.dumps(spell_options(read_options(value)))
        yield f"{flag}={value}"


def _following(flag: str, rest: Iterator[str]) -> str:
    """Return the value behind a flag."""
    value = next(rest, None)
    if value is None:
        raise OptionsError(f"{flag} needs a value behind it")
    return value


def _with_its_value(arg: str, rest: Iterator[str]) -> Iterator[str]:
    """Yield a flag of the parser itself, and what stands behind it: `--bench FILE`, `-h`."""
    yield arg
    if "=" not in arg and arg not in ("-h", "--help"):
        yield from itertools.islice(rest, 1)


def _meant_by(word: str) -> str:
    """Say how a word that stands alone is given to the benchmark."""
    if word in preset_names(_APPLICATION):
        return f"did you mean --preset {word}?"
    if word in choices_of(types_by_key()["bench.factory"]):
        return f"did you mean --factory {word}?"
    if word.endswith((".yml", ".yaml", ".json")):
        return f"did you mean --config {word}?"
    near = did_you_mean(word, ("steps", "cosmic", *preset_names(_APPLICATION)))
    return near or "flags begin with two dashes"
