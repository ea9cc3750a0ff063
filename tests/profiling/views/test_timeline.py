from __future__ import annotations

import dataclasses
import json

import pytest
from _sample_profiles import big_profile, hostile, never_run, one_call, small_profile, too_large

from torchkiln.profiling.views._flame import line_tree, module_tree, ordered_children, static_boxes
from torchkiln.profiling.views._liveness_plot import live_bytes
from torchkiln.profiling.views._speedscope import make_speedscope, render_speedscope
from torchkiln.profiling.views._trace import make_trace, render_trace

ALL = [small_profile, big_profile, never_run, one_call, hostile, too_large]


@pytest.mark.parametrize("make", ALL)
def test_events_of_the_trace_nest_strictly(make):
    trace = json.loads(render_trace(make()))
    stack, now = [], 0.0
    for event in trace["traceEvents"]:
        if event["ph"] == "B":
            assert event["ts"] >= now
            stack.append(event)
        elif event["ph"] == "E":
            opened = stack.pop()
            assert (opened["name"], opened["cat"]) == (event["name"], event["cat"])
            assert event["ts"] >= opened["ts"]
        if event["ph"] in "BE":
            assert event["ts"] >= now
            now = event["ts"]
    assert stack == []


def spans(profile):
    found, stack = [], []
    for event in make_trace(profile)["traceEvents"]:
        if event["ph"] == "B":
            stack.append(event)
        elif event["ph"] == "E":
            opened = stack.pop()
            path = [one["name"] for one in (*stack, opened)]
            found.append((opened["cat"], path, event["ts"] - opened["ts"], opened.get("args", {})))
    return found


def test_spans_of_a_kind_add_up_to_what_was_measured():
    profile = small_profile()
    all_spans = spans(profile)
    times = profile.times
    total = {
        kind: sum(us for cat, _, us, _ in all_spans if cat == kind)
        for kind in ("step", "executable", "phase", "kernel", "outside")
    }
    # Whole nanoseconds.
    near = 1e-3
    assert total["step"] == pytest.approx(times.loop_us, abs=near)
    for kind in ("executable", "phase", "kernel"):
        assert total[kind] == pytest.approx(times.executable_us, abs=near)
    assert total["outside"] == pytest.approx(times.loop_us - times.executable_us, abs=near)
    for call in profile.calls:
        mine = sum(us for _, _, us, args in all_spans if args.get("call") == call.index)
        assert mine == pytest.approx(call.us, abs=2e-3)


def test_kernels_lie_in_line_module_and_phase():
    (path,) = [path for _, path, _, args in spans(small_profile()) if args.get("call") == 1]
    assert path == [
        "one step of training",
        "executable",
        "forward",
        "blocks",
        "blocks.0",
        "blocks.0.attention",
        "blocks.0.attention.qkv",
        "examples/transformer.py:44",
        "mkl.aten.addmm",
    ]


def test_memory_is_a_counter_that_reaches_the_peak():
    profile = small_profile()
    counters = [event for event in make_trace(profile)["traceEvents"] if event["ph"] == "C"]
    assert max(sum(event["args"].values()) for event in counters) == profile.liveness.total_bytes
    assert [event["ts"] for event in counters] == sorted(event["ts"] for event in counters)
    always = sum(profile.liveness.always.values())
    assert sum(counters[-1]["args"].values()) == always


def test_unexplained_time_is_on_the_line():
    profile = small_profile()
    fewer = dataclasses.replace(profile, rows=profile.rows[3:])
    step = next(us for kind, _, us, _ in spans(fewer) if kind == "step")
    assert step == pytest.approx(profile.times.loop_us, abs=1e-3)


@pytest.mark.parametrize("make", ALL)
def test_opens_and_closes_of_speedscope_balance(make):
    profile = make()
    file = json.loads(render_speedscope(profile))
    frames = file["shared"]["frames"]
    times = file["profiles"][0]
    stack, now = [], times["startValue"]
    for event in times["events"]:
        assert event["at"] >= now
        now = event["at"]
        if event["type"] == "O":
            assert 0 <= event["frame"] < len(frames)
            stack.append(event["frame"])
        else:
            assert stack.pop() == event["frame"]
    assert stack == []
    assert now == times["endValue"]
    assert all(isinstance(frame["name"], str) for frame in frames)


def test_speedscope_knows_the_memory_at_the_peak():
    profile = small_profile()
    file = make_speedscope(profile)
    memory = file["profiles"][1]
    assert (memory["unit"], memory["type"]) == ("bytes", "sampled")
    assert len(memory["samples"]) == len(memory["weights"])
    assert sum(memory["weights"]) == memory["endValue"] == profile.liveness.total_bytes
    assert len(make_speedscope(one_call())["profiles"]) == 1


@pytest.mark.parametrize("make", [small_profile, big_profile])
@pytest.mark.parametrize("tree", [module_tree, line_tree])
def test_boxes_of_the_flame_graph_add_up(make, tree):
    profile = make()
    root = tree(profile)
    assert root.us == pytest.approx(profile.times.executable_us)

    def check(node):
        if node.children:
            assert sum(child.us for child in node.children.values()) == pytest.approx(node.us)
        for child in node.children.values():
            check(child)

    check(root)
    assert [node.name for node in ordered_children(root)] == ["forward", "backward", "update"]
    boxes = static_boxes(root)
    assert boxes[0].width == 100
    assert all(box.left + box.width < 100.001 for box in boxes)
    assert len(boxes) < 1000


def test_a_flame_graph_of_nothing_has_no_boxes():
    assert static_boxes(module_tree(never_run())) == []
    assert static_boxes(module_tree(one_call())) == []


def test_curves_of_memory_are_those_of_the_blocks():
    profile = small_profile()
    curves = live_bytes(profile.liveness, len(profile.calls))
    for call in range(len(profile.calls)):
        for kind, curve in curves.items():
            expected = sum(
                block.size_bytes
                for block in profile.liveness.blocks
                if block.kind == kind and block.born <= call <= block.last
            )
            assert curve[call] == expected
    assert sum(curve[profile.liveness.peak_call] for curve in curves.values()) == (
        profile.liveness.peak_bytes
    )
