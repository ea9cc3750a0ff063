"""`torchkiln profile show` and `diff` for profiles of programs. No torch."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

from torchkiln.core import OptionsError, StoreError
from torchkiln.core._console import make_console
from torchkiln.profiling.graph._file import find_profiles, load_profile
from torchkiln.profiling.views._diff import DiffView, compare_profiles
from torchkiln.profiling.views._terminal import TextTable, all_tables, diff_tables, insight_lines
from torchkiln.profiling.views._totals import View
from torchkiln.profiling.views._write import PAGE_NAME
from torchkiln.report._tables import print_table


def show_graph_profile(path: Path | None, by: View | None = None, top: int = 15) -> None:
    """Print the profile of each program that a path means."""
    if path is None:
        raise OptionsError("which profile? as in `torchkiln profile show FOLDER`")
    _check_top(top)
    for place, file in enumerate(find_profiles(path)):
        profile = load_profile(file)
        if place:
            _say("")
        for table in all_tables(profile, by, top):
            _print(table)
        if by is not None and profile.times is None:
            _say(f"there are no times by {by}: nothing was run")
        insights = insight_lines(profile) if by is None else []
        if insights:
            _say("What to change, the largest gain first:")
            for number, text in enumerate(insights, 1):
                _say(f"{number}. {text}")
        page = file.parent / PAGE_NAME
        if page.is_file():
            _say(f"report: {page}")


def diff_graph_profiles(paths: list[Path], by: DiffView = "row", top: int = 20) -> None:
    """Print what differs between two profiles."""
    if len(paths) != 2:
        raise OptionsError(
            f"comparing needs two profiles, got {len(paths)}, as in `torchkiln profile diff A B`"
        )
    _check_top(top)
    first, second = _pair(*paths)
    diff = compare_profiles(load_profile(first), load_profile(second), by)
    for remark in diff.remarks:
        _say(remark)
    tables = diff_tables(diff, _names(*paths), top, by)
    for table in tables:
        _print(table)
    if not tables:
        raise StoreError("there is nothing to compare: neither times nor memory are in both")


def _pair(first: Path, second: Path) -> tuple[Path, Path]:
    """Return the two files; of folders with several programs, those of the only common name."""
    sides = [find_profiles(path) for path in (first, second)]
    if len(sides[0]) == len(sides[1]) == 1:
        return sides[0][0], sides[1][0]
    by_name = [{file.parent.name: file for file in side} for side in sides]
    common = sorted(by_name[0].keys() & by_name[1].keys())
    if len(common) != 1:
        names = ", ".join(str(file.parent) for side in sides for file in side)
        raise OptionsError(f"which programs? name one on each side, out of {names}")
    return by_name[0][common[0]], by_name[1][common[0]]


def _names(first: Path, second: Path) -> tuple[str, str]:
    """Return short names that tell the two apart: what differs at the end of their paths."""
    a, b = first.resolve().parts, second.resolve().parts
    while len(a) > 1 and len(b) > 1 and a[-1] == b[-1]:
        a, b = a[:-1], b[:-1]
    return a[-1], b[-1]


def _check_top(top: int) -> None:
    if top < 1:
        raise OptionsError(f"--top {top} shows nothing; use at least 1")


def _print(table: TextTable) -> None:
    print_table(
        table.title,
        table.columns,
        table.rows,
        right=table.right,
        may_be_left_out=table.may_be_left_out,
        may_be_shortened=table.may_be_shortened,
    )
    for note in table.notes:
        _say(note)


def _say(text: str) -> None:
    """Write a paragraph as wide as tables are."""
    width = make_console(plain_width=160).width
    sys.stdout.write((textwrap.fill(text, width) if text else "") + "\n")
