"""What the command lines of all applications share. No torch up here."""

from __future__ import annotations

import argparse
import contextlib
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from jsonargparse import ActionConfigFile, ArgumentParser, DefaultHelpFormatter

from torchkiln.apps._type_words import choices_of, words_for, wrong_value
from torchkiln.core._near_miss import did_you_mean
from torchkiln.core._plain_warnings import LogLevel, logging_at
from torchkiln.core._progress import quietly
from torchkiln.core._threads import keep_threads, pin_threads

# Beyond, the eye loses the line.
_WIDEST = 110
# How paragraphs begin that hold commands.
_EXAMPLES = ("examples:", "For example:")

EXIT_CODES = """exit codes:
  0    all is well
  1    the run failed, its name is taken, data or a checkpoint are missing or damaged or do not \
suit the flags, or a program does not fit into memory
  2    a command, a flag or a setting is wrong; nothing was done
  130  interrupted with Ctrl-C
  143  ended by SIGTERM; a training that was saved first ends with 130"""


class HelpFormatter(DefaultHelpFormatter):  # type: ignore[misc]
    """Types in plain words, lines that fit, and all names of a flag before its value."""

    def __init__(self, prog: str, *args: Any, width: int | None = None, **settings: Any) -> None:
        super().__init__(prog, *args, width=help_width() if width is None else width, **settings)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return fill_paragraphs(text, width)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        """Write `--long, --short VALUE`, on lines of their own if they are too wide for one."""
        text: str = super()._format_action_invocation(action)
        names = [name for name in action.option_strings if not name.endswith("+")]
        if not names or action.nargs == 0:
            return text
        value = text.rsplit(action.option_strings[-1], 1)[1]
        line: str = ", ".join(names) + value
        indent = "\n" + " " * self._current_indent
        if len(line) + self._current_indent <= self._width:
            return line
        if len(names) < 2:
            return f"{names[0]}{indent}   {value}"
        lines: str = f",{indent}".join(names) + value
        return lines

    def _get_default_metavar_for_optional(self, action: argparse.Action) -> str:
        choices = choices_of(getattr(action, "_typehint", None) or str)
        if choices:
            return "{" + ",".join(choices) + "}"
        name: str = super()._get_default_metavar_for_optional(action)
        return name

    def _get_type_str(self, action: argparse.Action) -> str | None:
        kind = getattr(action, "_typehint", None) or action.type
        if kind is None or choices_of(kind):  # choices stand behind the flag already
            return None
        return words_for(kind)

    def _get_help_string(self, action: argparse.Action) -> str:
        text: str = super()._get_help_string(action)
        return text.replace("type: %(type)s", "%(type)s")

    def _expand_help(self, action: argparse.Action) -> str:
        text: str = super()._expand_help(action)
        return re.sub(r"default: (True|False)\)", lambda found: found[0].lower(), text)


def make_base_parser(
    prog: str,
    description: str,
    epilog: str,
    formatter: type[HelpFormatter] = HelpFormatter,
    *,
    allow_abbrev: bool = True,
) -> ArgumentParser:
    """Return a parser that knows `--config`; errors are raised, not printed."""
    parser = ArgumentParser(
        prog=prog,
        description=description,
        epilog=epilog,
        formatter_class=formatter,
        allow_abbrev=allow_abbrev,
        exit_on_error=False,
    )
    parser.add_argument(
        "--config",
        metavar="FILE",
        action=ActionConfigFile,
        help="A file of settings, YAML or JSON; may be given several times.",
    )
    return parser


def explain_print_config(parser: ArgumentParser) -> None:
    """Let `--print_config`, which the parser adds itself, be explained in our words."""
    printing = parser._option_string_actions["--print_config"]
    # The backspace takes away the space before it: the words follow an equals sign.
    printing.metavar = "\b[={comments,skip_null}+]"
    printing.help = (
        "Print all settings as YAML, after applying all other arguments, and exit. With =comments "
        "each is explained, =skip_null leaves out the empty ones, =skip_default the unchanged ones."
    )


def readable(error: Exception, kinds: Mapping[str, Any] | None = None) -> str:
    """Say what is wrong with a value on one line: `bench.loss must be mse or mae, got 'huber'`.

    Args:
        error: Of the parser.
        kinds: Types of the settings by their names.
    """
    text = str(error)
    name = re.search(r'(?:Parser key|argument) "?(?:--)?([\w.]+)"?:', text)
    value = re.search(r"(?:Got|Given) value: (.*)\Z", text, re.DOTALL)
    if name and value and kinds and name[1] in kinds:
        return wrong_value(name[1], kinds[name[1]], value[1].strip())
    if kinds and (key := _unknown_key(text)):
        near = did_you_mean(key, kinds, otherwise="--help lists all of them")
        return f"unknown key {key!r} in a config file; {near}"
    if missing := re.search(r"arguments are required: (\w+)", text):
        return f"a value for --{missing[1]} is missing"
    text = re.sub(r'Parser key "([^"]+)":\s*', r"\1: ", text)
    text = re.sub(r"<class '([^']+)'>", r"\1", text)
    return re.sub(r"\s*\n\s*", "; ", text.strip())


def _unknown_key(text: str) -> str:
    """Return the key of a config file that the parser's message is about; empty if it is not."""
    in_group = re.search(r"Group '([\w.]+)' does not accept option '([\w.]+)'", text)
    alone = re.search(r"Option '([\w.]+)' is not accepted", text)
    if in_group:
        return f"{in_group[1]}.{in_group[2]}"
    return alone[1] if alone else ""


@contextlib.contextmanager
def speaking(*, quiet: bool, log_level: LogLevel) -> Iterator[None]:
    """Tell a person as much as `--quiet` and `--log_level` ask for, for as long as this lasts."""
    with quietly(quiet), logging_at(log_level):
        yield


def fix_threads(num_threads: int | None) -> None:
    """Pin the threads of a fresh process; one that runs torch already is only told how many."""
    if "torch" not in sys.modules:
        pin_threads(num_threads)
    elif num_threads is not None:
        import torch

        torch.set_num_threads(num_threads)
        keep_threads()


def help_width() -> int:
    """Return how wide help texts are: as the terminal, up to what the eye can follow."""
    return min(shutil.get_terminal_size().columns, _WIDEST) - 2


def fill_paragraphs(text: str, width: int) -> str:
    """Return a text whose lines fit into `width`; commands that may be copied stay on one line."""
    return "\n\n".join(_filled(part, width) for part in text.split("\n\n"))


def _filled(part: str, width: int) -> str:
    if part.startswith(_EXAMPLES):
        return part
    if "\n  " in part:
        return "\n".join(_filled_row(line, width) for line in part.splitlines())
    return textwrap.fill(" ".join(part.split()), width, break_on_hyphens=False)


def _filled_row(line: str, width: int) -> str:
    """Return a row of a table, whose second column stays a column."""
    first = re.match(r"  \S+ {2,}", line)
    indent = " " * len(first[0]) if first else ""
    return textwrap.fill(line, width, subsequent_indent=indent, break_on_hyphens=False)
