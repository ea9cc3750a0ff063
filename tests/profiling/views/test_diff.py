from __future__ import annotations

import dataclasses
import math

import pytest
from _sample_profiles import (
    big_profile,
    make_profile,
    never_run,
    one_call,
    small_profile,
    too_large,
)

from torchkiln.profiling.graph._values import SourceLine
from torchkiln.profiling.views._diff import OUTSIDE, WAITING, compare_profiles
from torchkiln.profiling.views._matching import match_lines
from torchkiln.profiling.views._terminal import diff_tables

VIEWS = ("row", "line", "module", "operator", "phase", "parameter")


def slower():
    """The first line of each block takes twice as long."""
    return make_profile(num_blocks=2, rows_per_call=2, training=True, seed=0, slower=2.0)


@pytest.mark.parametrize("by", VIEWS)
@pytest.mark.parametrize(
    ("first", "second"),
    [(small_profile, slower), (small_profile, big_profile), (big_profile, one_call)],
)
def test_differences_add_up_to_that_of_the_steps(first, second, by):
    a, b = first(), second()
    diff = compare_profiles(a, b, by)
    expected = b.times.loop_us - a.times.loop_us
    assert math.fsum(one.change for one in diff.times) == pytest.approx(expected, rel=1e-9)
    assert diff.loop.change == expected
    firsts = math.fsum(one.first or 0 for one in diff.times)
    assert firsts == pytest.approx(a.times.loop_us, rel=1e-9)


def test_time_without_a_row_is_a_row_of_the_comparison():
    a = small_profile()
    b = dataclasses.replace(a, rows=a.rows[2:])
    diff = compare_profiles(a, b)
    assert math.fsum(one.change for one in diff.times) == pytest.approx(0, abs=1e-6)
    assert "(not assigned)" in [one.label for one in diff.times]


def test_memory_adds_up_too():
    a, b = small_profile(), small_profile(training=False)
    diff = compare_profiles(a, b)
    expected = b.liveness.total_bytes - a.liveness.total_bytes
    assert sum(one.change for one in diff.memory) == expected == diff.total_bytes.change
    gone = next(one for one in diff.memory if one.label == "optimiser state")
    assert (gone.status, gone.second) == ("gone", None)


def test_the_same_profile_does_not_differ():
    diff = compare_profiles(small_profile(), small_profile())
    assert not any(one.change or one.status for one in (*diff.times, *diff.memory))
    assert diff.remarks == []


def test_the_line_that_became_slower_comes_first():
    first, *_ = compare_profiles(small_profile(), slower(), "line").times
    assert first.label == "examples/transformer.py:41"
    assert first.status == ""


def test_outside_and_waiting_are_rows():
    labels = {one.label for one in compare_profiles(small_profile(), slower()).times}
    assert {OUTSIDE, WAITING} <= labels


def moved(profile, by=10):
    lines = tuple(dataclasses.replace(line, line=line.line + by) for line in profile.lines)
    return dataclasses.replace(profile, lines=lines)


def test_lines_that_moved_are_the_same():
    diff = compare_profiles(small_profile(), moved(small_profile()))
    assert not any(one.change or one.status for one in diff.times)


def line(number, code, file="a.py", function="forward"):
    return SourceLine(file, number, function, code)


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        # Text beats number: the second line took the place of the first.
        ([line(1, "x"), line(2, "y")], [line(2, "x"), line(3, "y")], {0: 0, 1: 1}),
        ([line(1, "x"), line(2, "y")], [line(1, "y"), line(2, "x")], {0: 1, 1: 0}),
        # Edited in its place, or without a text.
        ([line(5, "x = a")], [line(5, "x = b")], {0: 0}),
        ([line(5, "")], [line(5, "")], {0: 0}),
        ([line(5, "")], [line(6, "")], {}),
        # One text several times, of which one stayed where it was.
        ([line(1, "x"), line(4, "x")], [line(4, "x"), line(8, "x")], {0: 1, 1: 0}),
        ([line(1, "x"), line(4, "x")], [line(2, "x"), line(5, "x")], {0: 0, 1: 1}),
        # Another folder; another function is another line.
        ([line(1, "x", "b/a.py")], [line(9, "x", "c/a.py")], {0: 0}),
        ([line(1, "x")], [line(9, "x", function="other")], {}),
        ([], [line(1, "x")], {}),
    ],
)
def test_lines_are_matched_by_text_first(first, second, same):
    assert match_lines(tuple(first), tuple(second)) == same


def test_rows_of_one_side_only_are_new_or_gone():
    a, b = small_profile(training=False), small_profile()
    status = {one.label: one.status for one in compare_profiles(a, b, "phase").times}
    assert status["update"] == "new"
    assert {one.label: one.status for one in compare_profiles(b, a, "phase").times}[
        "update"
    ] == "gone"


def test_what_cannot_be_compared_is_said():
    diff = compare_profiles(never_run(), small_profile())
    assert (diff.times, diff.loop) == ([], None)
    assert "nothing was run for the first profile" in diff.remarks[0]
    assert diff.memory
    unseen = small_profile()
    times = dataclasses.replace(unseen.times, waiting_us=None, other_us=None)
    diff = compare_profiles(small_profile(), dataclasses.replace(unseen, times=times))
    assert "loop around the second program was not seen" in diff.remarks[0]
    assert math.fsum(one.change for one in diff.times) == pytest.approx(diff.loop.change)
    other = dataclasses.replace(small_profile(), machine={"cores": "8"}, inputs=("x: f32[2]",))
    told = " ".join(compare_profiles(small_profile(), other).remarks)
    assert "differ in cores: 2 and 8" in told
    assert "inputs differ" in told


@pytest.mark.parametrize("top", [1, 3, 1000])
def test_the_tables_add_up_however_short_they_are(top):
    tables = diff_tables(compare_profiles(small_profile(), slower()), ("a", "b"), top)
    table = tables[0]
    changes = [float(row[4].replace(",", "").replace("<", "")) for row in table.rows]
    # Each figure is rounded to a tenth.
    assert sum(changes[:-1]) == pytest.approx(changes[-1], abs=0.06 * len(changes))
    assert table.rows[-1][0] == "total"


def test_a_comparison_without_times_has_a_table_of_memory_only():
    tables = diff_tables(compare_profiles(never_run(), too_large()), ("a", "a"), 5)
    assert [table.title[:6] for table in tables] == ["Memory"]
    assert "a (A)" in tables[0].columns
