"""One command at a time: what it is called, how long it took, and all it said if it fails."""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

TIMEOUT_S = 1800


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def fail(reason: str) -> None:
    """End the program with exit code 1."""
    say(f"\nFAILED: {reason}")
    raise SystemExit(1)


def require(condition: bool, reason: str) -> None:
    """Fail unless the condition holds; unlike `assert`, also under `python -O`."""
    if not condition:
        fail(reason)


def run(
    title: str,
    command: Sequence[str | Path],
    *,
    cwd: Path,
    env: Mapping[str, str],
    says: str = "",
) -> str:
    """Run a command that must succeed; return its standard output.

    Args:
        title: What is shown for it.
        command: The command.
        cwd: Where it runs.
        env: Its whole environment.
        says: A text that must be in what it prints.
    """
    begin = time.monotonic()
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=dict(env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    shown = f"$ {shlex.join(str(part) for part in command)}\n{done.stdout}{done.stderr}"
    if done.returncode != 0:
        say(shown)
        fail(f"{title} (exit code {done.returncode})")
    if says not in done.stdout + done.stderr:
        say(shown)
        fail(f"{title}: it does not say {says!r}")
    say(f"  ok {time.monotonic() - begin:6.1f} s  {title}")
    return done.stdout
