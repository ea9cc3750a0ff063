"""How a person called this program, so that a hint can be pasted as it stands. No torch up here."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

# What `sys.argv[0]` is called when a module was run: python -m torchkiln.
_MODULES = ("__main__.py", "cli.py")


def invocation(prog: str, args: Sequence[str] | None) -> str:
    """Return the beginning of a command line that calls the same program again.

    Args:
        prog: What the program calls itself: "bench.py", "torchkiln bench".
        args: What follows it on the present command line; None: all of `sys.argv`. If these are not
            the arguments of this process, as in a notebook, the answer follows from `prog` alone.
    """
    script, _, subcommand = prog.partition(" ")
    if not _is_own_command_line(script, args):
        python = "python " if script.endswith(".py") else ""
        return f"{python}{prog}"
    before = len(sys.orig_argv) - len(sys.argv) + 1
    words = sys.orig_argv[:before]
    is_module = "-m" in words[-2:-1]
    if not script.endswith(".py") and not is_module and Path(words[-1]).name == script:
        # An installed command: the system put Python before it.
        words = [_shortest(words[-1])]
    return shlex.join([*words, *subcommand.split()])


def _is_own_command_line(script: str, args: Sequence[str] | None) -> bool:
    if not sys.argv or len(sys.orig_argv) < len(sys.argv):
        return False
    if Path(sys.argv[0]).name not in (script, *_MODULES):
        return False
    if sys.orig_argv[len(sys.orig_argv) - len(sys.argv) + 1 :] != sys.argv[1:]:
        return False
    return args is None or list(args) == sys.argv[len(sys.argv) - len(args) :]


def _shortest(command: str) -> str:
    """Return the bare name of a command if a shell would find it under that name."""
    found = shutil.which(Path(command).name)
    is_found = found is not None and Path(found).resolve() == Path(command).resolve()
    return Path(command).name if is_found else command
