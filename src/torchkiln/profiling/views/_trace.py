"""One step as a Chrome trace, for Perfetto and chrome://tracing.

Spans are pairs of events at the very same times as their neighbours', not durations: viewers round
both ends of a duration on their own, and neighbours would overlap.
"""

from __future__ import annotations

import json
from typing import Any

from torchkiln.profiling.graph._values import GraphProfile
from torchkiln.profiling.views._liveness_plot import live_bytes
from torchkiln.profiling.views._timeline import NOT_RUN, lay_out

_PROCESS, _THREAD = 1, 1


def make_trace(profile: GraphProfile) -> dict[str, Any]:
    """Return the trace as JSON values: spans, and live memory as a counter."""
    timeline = lay_out(profile)
    title = f"{profile.name}: {profile.model}"
    events: list[dict[str, Any]] = [
        _name("process_name", title),
        _name("thread_name", "one step" if profile.times is not None else NOT_RUN),
    ]
    for edge in timeline.edges:
        event: dict[str, Any] = {
            "ph": "B" if edge.opens else "E",
            "ts": edge.at_ns / 1000,
            "pid": _PROCESS,
            "tid": _THREAD,
            "name": edge.level.name,
            "cat": edge.level.kind,
        }
        facts = dict(edge.facts)
        if edge.opens and edge.level.line is not None:
            facts |= {"code": edge.level.line.code, "function": edge.level.line.function}
        if facts:
            event["args"] = facts
        events.append(event)
    events += _memory(profile, timeline.call_ns, timeline.end_ns)
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": _facts(profile)}


def render_trace(profile: GraphProfile) -> str:
    return json.dumps(make_trace(profile), allow_nan=False)


def _name(kind: str, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": _PROCESS, "tid": _THREAD, "name": kind, "args": {"name": name}}


def _memory(profile: GraphProfile, call_ns: dict[int, int], end_ns: int) -> list[dict[str, Any]]:
    """Return the bytes that are alive from the beginning of each call on, by kind."""
    liveness = profile.liveness
    if liveness is None:
        return []
    always = sum(liveness.always.values())
    curves = live_bytes(liveness, len(profile.calls))

    def event(at_ns: int, call: int | None) -> dict[str, Any]:
        values = {kind: 0 if call is None else curve[call] for kind, curve in curves.items()}
        return {
            "ph": "C",
            "ts": at_ns / 1000,
            "pid": _PROCESS,
            "name": "live memory (bytes)",
            "args": {"always": always, **values},
        }

    # A call that takes no time begins where the next one does; only the last can be drawn there.
    latest = {at_ns: call for call, at_ns in sorted(call_ns.items())}
    events = [event(at_ns, call) for at_ns, call in sorted(latest.items())]
    return [*events, event(end_ns, None)]


def _facts(profile: GraphProfile) -> dict[str, Any]:
    return {
        "program": profile.name,
        "created": profile.created,
        "note": "Order and durations of calls are measured. Where one kernel serves several lines "
        "its time is divided by their work; Python's part is drawn before the executable.",
        **profile.versions,
    }
