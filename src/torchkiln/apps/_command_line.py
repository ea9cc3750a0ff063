"""What the command lines of all applications share. No torch up here."""

from __future__ import annotations

import contextlib
import re
import sys

from jsonargparse import ActionConfigFile, ArgumentParser, DefaultHelpFormatter


class HelpFormatter(DefaultHelpFormatter):  # type: ignore[misc]
    """Leaves the lines of the examples as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if text.startswith("examples:"):
            return text
        filled: str = super()._fill_text(text, width, indent)
        return filled


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
        action=ActionConfigFile,
        help="A file of settings, YAML or JSON; may be given several times.",
    )
    return parser


def readable(error: Exception) -> str:
    """Say `bench.num_epochs: expected ...` on one line."""
    text = re.sub(r'Parser key "([^"]+)":\s*', r"\1: ", str(error))
    text = re.sub(r"<class '([^']+)'>", r"\1", text)
    return re.sub(r"\s*\n\s*", "; ", text.strip())


def fix_threads(num_threads: int | None) -> None:
    """Pin the threads of a fresh process; one that runs torch already is only told how many."""
    if "torch" not in sys.modules:
        from torchkiln.core._threads import pin_threads

        pin_threads(num_threads)
    elif num_threads is not None:
        import torch

        torch.set_num_threads(num_threads)


def say(text: str) -> None:
    """Tell a person what is going on; standard output is for results."""
    with contextlib.suppress(BrokenPipeError):  # the reader has seen enough; results still count
        print(text, file=sys.stderr, flush=True)  # noqa: T201
