from __future__ import annotations

import dataclasses

import pytest
from _sample_profiles import big_profile, never_run, one_call, small_profile

from torchkiln.profiling.graph._values import Peaks, Row
from torchkiln.profiling.views._roofline import draw_roof, speed_of
from torchkiln.profiling.views._totals import UNEXPLAINED, VIEWS, group_rows, unexplained_us

# Sums of 10,000 floats in another order.
ROUNDING = 1e-9


@pytest.mark.parametrize("by", VIEWS)
@pytest.mark.parametrize("make", [small_profile, big_profile])
def test_groups_of_every_view_add_up_to_the_executable(make, by):
    profile = make()
    groups = group_rows(profile, by)
    assert sum(group.us for group in groups) == pytest.approx(
        profile.times.executable_us, rel=ROUNDING
    )
    places = sorted(place for group in groups for place in group.rows)
    assert places == list(range(len(profile.rows)))  # every row in exactly one group
    for group in groups:
        assert sum(group.phase_us.values()) == pytest.approx(group.us, rel=ROUNDING)


def test_groups_have_their_names_and_their_order():
    profile = small_profile()
    assert [group.label for group in group_rows(profile, "phase")] == [
        *("forward", "backward", "update")
    ]
    lines = group_rows(profile, "line")
    assert lines == sorted(lines, key=lambda group: -group.us)
    first = lines[0]
    assert first.label.startswith("examples/transformer.py:")
    assert first.detail
    assert first.phase_us.keys() == {"forward", "backward"}  # backward belongs to the line
    assert any(group.label == "update of blocks.0.norm.weight" for group in lines)
    parameters = {group.label for group in group_rows(profile, "parameter")}
    assert {"blocks.0.norm.weight", "(no parameter)"} <= parameters
    calls = group_rows(profile, "call")
    assert [group.label.partition(":")[0] for group in calls] == [
        str(call.index) for call in profile.calls
    ]
    for group, call in zip(calls, profile.calls, strict=True):
        assert group.us == pytest.approx(call.us)


def test_divided_times_are_marked():
    profile = small_profile()
    marks = {group.label: group.is_estimate for group in group_rows(profile, "operator")}
    assert not marks["aten.bmm"]
    assert marks["aten.native_layer_norm"]
    # All parts of a kernel together are what was measured.
    for by in ("call", "phase"):
        assert not any(group.is_estimate for group in group_rows(profile, by))


def test_time_that_no_row_explains_is_shown_as_such():
    profile = small_profile()
    fewer = dataclasses.replace(profile, rows=profile.rows[3:])
    lost = sum(row.us for row in profile.rows[:3])
    for by in VIEWS:
        *_, last = group_rows(fewer, by)
        assert last.label == UNEXPLAINED
        assert last.us == pytest.approx(lost)
    assert unexplained_us(profile) == 0


def test_calls_count_their_runs():
    profile = small_profile()
    calls = tuple(dataclasses.replace(call, runs=4.0) for call in profile.calls)
    (group,) = [
        group
        for group in group_rows(dataclasses.replace(profile, calls=calls), "call")
        if group.label.startswith("0:")
    ]
    assert group.num_calls == 4


def test_nothing_was_run_or_nothing_took_time():
    for make in (never_run, one_call):
        for by in VIEWS:
            assert all(group.us == 0 for group in group_rows(make(), by))


def row(call, us, flops, moved):
    return Row(call, "forward", "a", "A", None, "op", "", us, flops, moved, False)


def test_speed_is_that_of_the_figures():
    peaks = Peaks(gflops_per_s=100.0, gbytes_per_s=10.0)
    # 50,000 operations in 1 µs are 50 GFLOP/s, half of the peak; 1,000 bytes are 1 GB/s.
    speed = speed_of([row(0, 1.0, 50_000, 1_000)], peaks)
    assert (speed.gflops_per_s, speed.gbytes_per_s) == (50.0, 1.0)
    assert (speed.bound, speed.attained) == ("compute", 0.5)
    speed = speed_of([row(0, 2.0, 1_000, 10_000)], peaks)
    assert (speed.bound, speed.attained) == ("memory", 0.5)
    # Two rows of one call share its limit; those of two calls have one each.
    together = [row(0, 1.0, 50_000, 0), row(0, 1.0, 0, 5_000)]
    assert speed_of(together, peaks).attained == pytest.approx(0.25)
    apart = [row(0, 1.0, 50_000, 0), row(1, 1.0, 0, 5_000)]
    assert speed_of(apart, peaks).attained == pytest.approx(0.5)


def test_speed_of_what_is_unknown():
    peaks = Peaks(100.0, 10.0)
    assert speed_of([], peaks).gflops_per_s is None
    assert speed_of([row(0, 0.0, 5, 5)], peaks).attained is None
    assert speed_of([row(0, None, 5, 5)], peaks).attained is None
    assert speed_of([row(0, 1.0, 0, 0)], peaks).bound == ""
    assert speed_of([row(0, 1.0, 5_000, 5)], None).gflops_per_s == 5.0
    assert speed_of([row(0, 1.0, 5_000, 5)], Peaks(0.0, 0.0)).attained is None


def test_the_roof_has_its_dots_inside_and_its_corner_at_the_peaks():
    profile = small_profile()
    groups = [(g.label, [profile.rows[p] for p in g.rows]) for g in group_rows(profile, "operator")]
    roof = draw_roof(profile, groups)
    assert 5 <= len(roof.dots) <= len(groups)
    for left, top, radius, _ in roof.dots:
        assert 0 <= left <= 100
        assert 0 <= top <= 100
        assert 4 <= radius <= 16
    assert draw_roof(never_run(), groups) is None
    assert draw_roof(profile, []) is None
