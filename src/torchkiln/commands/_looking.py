"""The commands that look at programs: what runs now, on what, and where time and memory went."""

from __future__ import annotations

from pathlib import Path
from typing import Literal


def devices(json: bool = False) -> None:
    """List what this machine computes with: cores, caches, instruction sets, memory, GPUs.

    Args:
        json: Print one JSON record instead of a table.
    """
    from torchkiln.commands._monitor import print_devices

    print_devices(as_json=json)


def monitor(once: bool = False, json: bool = False, interval: float = 1.0) -> None:
    """Show which programs run on this machine, how fast, and what they wait for.

    On a terminal the table is live until you press q or Ctrl-C; in a file or a pipe it is printed
    once. Programs of other users appear if these set TORCHKILN_BEACON=shared.

    Args:
        once: Print the table once and end.
        json: Print one JSON record instead, and end.
        interval: Seconds between two looks, which rates and shares are taken from.
    """
    from torchkiln.commands._monitor import run_monitor

    run_monitor(once=once, as_json=json, interval=interval)


def profile_show(
    path: Path | None = None,
    by: Literal["line", "module", "operator", "phase", "parameter", "call"] | None = None,
    top: int = 15,
) -> None:
    """Print what a profile says: where the time and the memory of a step or of a run go.

    For example: torchkiln profile show graph_profile --by line --top 30, or
    torchkiln profile show system_profile

    Args:
        path: What to show, which may stand alone, without --path: the folder of a graph profile (or
            one that holds those of several programs), the folder of a system profile, or a file.
        by: Of a graph profile, show one table only: times by line, module, operator, phase,
            parameter or call; default: a summary of all.
        top: How many rows a table of a graph profile shows at most.
    """
    from torchkiln.commands._profile import show_profile

    show_profile(path, by, top)


def profile_diff(
    paths: list[Path] = [],  # noqa: B006 - read by the command line, never changed
    by: Literal["row", "line", "module", "operator", "phase", "parameter"] = "row",
    top: int = 20,
) -> None:
    """Compare two profiles row by row; the differences add up to that of the step times.

    For example: torchkiln profile diff before/training after/training --by line

    Args:
        paths: The two profiles, which may stand alone, without --paths: files or folders.
        by: What times are summed by; row: phase, module, line, operator and parameter.
        top: How many rows a table shows at most; the others are summed in one.
    """
    from torchkiln.commands._graph_profile import diff_graph_profiles

    diff_graph_profiles(paths, by, top)


def profile_merge(directory: Path | None = None) -> None:
    """Put the files of all processes of a system profile together into one, for Perfetto.

    A run does this at its end; it is left to you if the run was killed.

    For example: torchkiln profile merge system_profile

    Args:
        directory: The folder of the profile, which may stand alone, without --directory; the
            newest run in it is merged into its trace.json.
    """
    from torchkiln.commands._profile import merge_profile

    merge_profile(directory)
