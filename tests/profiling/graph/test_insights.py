"""What holds a step up: each cause is told where it is there, and only there."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from _sample_profiles import never_run, small_profile, too_large

from torchkiln.core import Backend, Options
from torchkiln.core._other_processes import OtherLoad
from torchkiln.profiling.graph._insights import find_insights
from torchkiln.profiling.graph._values import Peaks, Times
from torchkiln.runtime import MemoryReport

MEMORY = MemoryReport(
    parameter_bytes=10,
    optimizer_bytes=20,
    gradient_bytes=10,
    batch_bytes=5,
    saved_bytes=100,
    temporary_bytes=10,
    output_bytes=0,
    peak_phase="backward",
    peak_module="",
    modules={},
    recomputed=(),
    recomputable_bytes=50,
    micro_batch_size=16,
    backend=Backend.INDUCTOR,
    training=True,
)


def profile_with(profile=None, **times):
    """Return a profile whose step takes 1,000 us, of which nothing is worth a word."""
    base = {
        "step_us": 1000.0,
        "executable_us": 990.0,
        "outside_us": 10.0,
        "waiting_us": None,
        "other_us": None,
        "steps_measured": 20,
        "steps_used": 10,
        "slowest_us": 2000.0,
    }
    profile = profile or small_profile()
    liveness = dataclasses.replace(
        profile.liveness, machine_bytes=10 * profile.liveness.total_bytes
    )
    rows = tuple(dataclasses.replace(row, us=0.1) for row in profile.rows)
    calls = tuple(dataclasses.replace(call, us=1.0, runs=0.1) for call in profile.calls)
    return dataclasses.replace(
        profile,
        times=Times(**{**base, **times}),
        liveness=liveness,
        rows=rows,
        calls=calls,
        peaks=Peaks(1e9, 1e9),
        steps_per_call=1,
    )


def kinds(profile, others=None, memory=MEMORY, sleeping=None):
    found = find_insights(profile, memory, Options(), others, sleeping=sleeping)
    return {insight.kind: insight for insight in found}


def test_a_step_that_nothing_holds_up_has_no_insight():
    assert kinds(profile_with()) == {}


def test_waiting_for_data_promises_what_can_be_hidden_behind_a_step():
    told = kinds(profile_with(waiting_us=400.0, other_us=0.0))["data"]
    assert "num_workers" in told.remedy
    assert 0 < told.gain_us <= 400
    slow = kinds(profile_with(waiting_us=5000.0, other_us=0.0))["data"]
    assert slow.gain_us <= 1000, "not more than a step takes: data is not made faster"
    assert "data" not in kinds(profile_with(waiting_us=10.0, other_us=0.0))


def test_a_wait_without_computing_asks_for_as_many_workers_as_keep_up():
    waits = profile_with(waiting_us=2500.0, other_us=0.0)
    asleep, computing = kinds(waits, sleeping=0.9)["data"], kinds(waits, sleeping=0.1)["data"]
    assert "num_workers=3" in asleep.remedy
    assert "90% of it goes by without computing" in asleep.text
    assert "num_workers=1)" in computing.remedy
    assert "without computing" not in computing.text
    long = kinds(profile_with(waiting_us=1e6, other_us=0.0), sleeping=1.0)["data"]
    assert "num_workers=8" in long.remedy


def test_work_between_steps_is_not_taken_for_waiting():
    found = kinds(profile_with(waiting_us=0.0, other_us=500.0))
    assert set(found) == {"loop"}
    assert found["loop"].gain_us is None


def test_python_around_short_steps_names_device_iterations():
    found = kinds(profile_with(executable_us=500.0, outside_us=500.0))
    told = found["python"]
    assert "Options(device_iterations=" in told.remedy
    assert 0 < told.gain_us < 500
    grouped = dataclasses.replace(
        profile_with(executable_us=500.0, outside_us=500.0), steps_per_call=4
    )
    assert "python" not in kinds(grouped), "that was done already"


def test_other_processes_are_named_if_they_take_cores_away():
    threads = torch.get_num_threads()
    load = OtherLoad(threads, 1.0, "python busy.py (process 4711)", 1.0)
    told = kinds(profile_with(), load)["other-processes"]
    assert "busy.py (process 4711)" in told.text
    assert 0 < told.gain_us < 1000
    free = OtherLoad(threads + 2, 1.0, "python busy.py (process 4711)", 1.0)
    assert "other-processes" not in kinds(profile_with(), free), "there is a core for everybody"


def test_calls_near_a_peak_of_the_machine_are_told():
    profile = profile_with(executable_us=float(len(small_profile().calls)))
    rate = max(call.flops * call.runs / call.us / 1e3 for call in profile.calls)
    bound = dataclasses.replace(profile, peaks=Peaks(rate / 100, 1e9))
    assert "compute-bound" in kinds(bound)
    moved = max((c.bytes_read + c.bytes_written) * c.runs / c.us / 1e3 for c in profile.calls)
    bound = dataclasses.replace(profile, peaks=Peaks(1e9, moved / 100))
    assert "memory-bound" in kinds(bound)


def test_one_line_that_takes_most_is_named():
    profile = profile_with()
    place = next(number for number, row in enumerate(profile.rows) if row.line is not None)
    rows = list(profile.rows)
    rows[place] = dataclasses.replace(rows[place], us=600.0)
    told = kinds(dataclasses.replace(profile, rows=tuple(rows)))["hot-line"]
    assert str(profile.lines[rows[place].line]) in told.text
    assert "60%" in told.text


def test_memory_is_told_without_times_too():
    told = kinds(too_large())["memory"]
    assert told.title == "The step does not fit into the memory"
    assert told.remedy == 'Options(recompute="auto")'
    assert told.gain_bytes == MEMORY.recomputable_bytes
    assert "times" not in kinds(never_run())


def test_what_is_told_makes_the_step_fit():
    """Of a step that needs more than recomputation saves, smaller micro-batches are told."""
    profile = too_large()
    limit = MEMORY.total_bytes - 2 * MEMORY.recomputable_bytes
    liveness = dataclasses.replace(profile.liveness, machine_bytes=limit)
    told = kinds(dataclasses.replace(profile, liveness=liveness))["memory"]
    assert told.remedy.startswith("micro-batches of ")
    assert MEMORY.total_bytes - told.gain_bytes <= limit


def test_a_step_that_just_fits_is_told_what_saves_most():
    profile = too_large()
    liveness = dataclasses.replace(
        profile.liveness, machine_bytes=profile.liveness.total_bytes, fits=True
    )
    profile = dataclasses.replace(profile, liveness=liveness)
    assert kinds(profile)["memory"].remedy == 'Options(recompute="auto")'
    smaller = dataclasses.replace(MEMORY, recomputable_bytes=0)
    assert "micro-batches of 8 rows" in kinds(profile, memory=smaller)["memory"].remedy


def test_the_largest_gain_comes_first():
    profile = profile_with(
        executable_us=500.0, outside_us=500.0, waiting_us=2000.0, other_us=3000.0
    )
    found = find_insights(profile, MEMORY, Options(), None)
    gains = [insight.gain_us or 0.0 for insight in found]
    assert gains == sorted(gains, reverse=True)
    assert [insight.kind for insight in found][:2] == ["data", "python"]


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_step_without_any_executable_time_is_survived(share):
    find_insights(profile_with(executable_us=share, outside_us=0.0), MEMORY, Options(), None)
