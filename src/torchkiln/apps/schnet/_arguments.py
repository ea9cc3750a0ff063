"""The command line and the config files of the benchmark, derived from the settings classes.

Two forms are understood, and may be mixed: nested (`--dataset_factory.batch_size 12`) and short
(`--batch_size 12`), on the command line and as keys of a config file. The command line wins over
config files, what comes later over what came earlier.
"""

from __future__ import annotations

import functools
import itertools
import json
import typing
from collections.abc import Iterator, Sequence
from typing import Any

from jsonargparse import ArgumentError, ArgumentParser

from torchkiln.apps._command_line import HelpFormatter, make_base_parser, readable
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

_DESCRIPTION = """Train SchNet on QM9 or on water clusters, on batches of one fixed size, compiled
once. Ends with a table, plots and a page about throughput and accuracy."""

_EPILOG = """examples:
  python3 bench.py --config configs/qm9_packed.yml
  python3 bench.py --config configs/qm9_packed.yml --use_wandb true
  python3 bench.py --config configs/qm9_packed.yml --num_epochs 1 --profile_dir graph_profile
  python3 bench.py --config configs/bench_config.yml --factory water
  python3 bench.py --limit 5000 --target gap --checkpoint --model_name gap
  python3 bench.py --replication_factor -1         # plain eager PyTorch, for comparison
  python3 bench.py --print_config=comments         # all settings with their meaning, as YAML
  python3 bench.py --dataset_factory.options.help torchkiln.Options

Flags win over config files. Every --group.name has the short form --name where only one group has
that name; a config file may use either form too. A bare --checkpoint means --checkpoint true."""


def read_settings(args: Sequence[str], prog: str = "bench.py") -> Settings:
    """Return what a command line asks for; `--help` and `--print_config` print and exit.

    A run that is continued has the settings of its checkpoint, but for those that are given.

    Raises:
        OptionsError: A flag, key or value is unknown or wrong; the message says which.
        CheckpointError: Flags contradict the checkpoint that is to be continued.
    """
    parser = _cached_parser(prog)
    config_paths, flags = _split_configs(_with_flag_values(args))
    flags = list(_checked_flags(flags, parser))
    merged: dict[str, Any] = {}
    for path in config_paths:
        try:
            values = read_config(path)
            parser.parse_object(values)
        except (ArgumentError, OptionsError, RecursionError) as error:
            raise OptionsError(f"config file {path}: {readable(error)}") from error
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
        raise OptionsError(readable(error)) from error
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
    parser = make_base_parser(prog, _DESCRIPTION, _EPILOG, _HelpFormatter)
    parser.add_class_arguments(Settings, sub_configs=True)
    actions = parser._option_string_actions
    for short, key in short_names().items():
        action = actions[f"--{key}"]
        action.option_strings.append(f"--{short}")
        actions[f"--{short}"] = action
    printing = actions["--print_config"]
    printing.metavar = "\b[={comments,skip_null}+]"
    printing.help = (
        "Print all settings as YAML, after applying all other arguments, and exit. With =comments "
        "each is explained, =skip_null leaves out the empty ones, =skip_default the unchanged ones."
    )
    return parser


class _HelpFormatter(HelpFormatter):
    """Writes `--long, --short VALUE`."""

    def _format_action_invocation(self, action: Any) -> str:
        text: str = super()._format_action_invocation(action)
        if len(action.option_strings) < 2 or action.nargs == 0:
            return text
        names = [name for name in action.option_strings if not name.endswith("+")]
        value = text.rsplit(action.option_strings[-1], 1)[1]
        return ", ".join(names) + value

    def _expand_help(self, action: Any) -> str:
        text: str = super()._expand_help(action)
        return text.replace("<class 'Path'>", "Path")


def _with_flag_values(args: Sequence[str]) -> list[str]:
    """Let `--checkpoint` stand alone: the parser wants a value for every setting."""
    shorts = short_names()
    switches = {
        key for key, kind in types_by_key().items() if kind is bool or bool in typing.get_args(kind)
    }
    spelled = []
    for arg, following in itertools.pairwise([*args, ""]):
        spelled.append(arg)
        key = shorts.get(arg.removeprefix("--"), arg.removeprefix("--"))
        if arg.startswith("--") and key in switches and not _is_truth(following):
            if following and not following.startswith("-"):
                raise OptionsError(f"{arg} takes true or false, got {following!r}")
            spelled.append("true")
    return spelled


def _is_truth(text: str) -> bool:
    return text.lower() in ("true", "false", "null")


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
        if not arg.startswith("--"):
            yield arg
            continue
        flag, has_value, value = arg.partition("=")
        name = flag.removeprefix("--")
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
            yield arg
            continue
        value = value if has_value else next(rest, "")
        if key in seen and seen[key][0] != name and seen[key][1] != value:
            raise OptionsError(contradiction(f"--{seen[key][0]}", seen[key][1], flag, value))
        seen[key] = (name, value)
        if key == OPTIONS_KEY:
            value = json.dumps(spell_options(read_options(value)))
        yield f"{flag}={value}"
