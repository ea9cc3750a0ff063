"""What the scripts of the page work on: the same values as its static part, as compact JSON."""

from __future__ import annotations

import json
from typing import Any

from torchkiln.profiling.graph._values import GraphProfile
from torchkiln.profiling.views._flame import Node, line_tree, module_tree, ordered_children
from torchkiln.profiling.views._liveness_plot import blocks_at_peak, live_bytes
from torchkiln.profiling.views._totals import (
    VIEWS,
    Group,
    group_rows,
    line_label,
    module_label,
    phases_of,
)


def embed_data(profile: GraphProfile) -> str:
    """Return JSON that may stand inside a script element, whatever names are in it."""
    text = json.dumps(page_data(profile), allow_nan=False, separators=(",", ":"))
    # No tag can begin, neither the end of the script nor a comment.
    return text.replace("<", "\\u003c")


def page_data(profile: GraphProfile) -> dict[str, Any]:
    """Return everything that is sorted, searched, zoomed or pointed at."""
    phases = phases_of(profile)
    data: dict[str, Any] = {
        "phases": phases,
        "measured": profile.times is not None,
        "executable_us": profile.times.executable_us if profile.times is not None else 0.0,
        "calls": [
            [
                call.kernel,
                call.kind,
                call.phase,
                call.us,
                call.runs,
                call.entry,
                list(call.inputs),
                list(call.outputs),
                list(call.operations),
            ]
            for call in profile.calls
        ],
    }
    if profile.times is not None:
        data["groups"] = {
            view: [_group(group, phases) for group in group_rows(profile, view)] for view in VIEWS
        }
        data["rows"] = _rows(profile)
        data["flame"] = {
            "module": _node(module_tree(profile)),
            "line": _node(line_tree(profile)),
        }
    if profile.liveness is not None:
        data["always"] = sum(profile.liveness.always.values())
        data["live"] = live_bytes(profile.liveness, len(profile.calls))
        data["blocks"] = _blocks(profile)
    return data


def _group(group: Group, phases: list[str]) -> list[Any]:
    speed = group.speed
    return [
        group.label,
        group.detail,
        group.us,
        [group.phase_us.get(phase, 0.0) for phase in phases],
        group.num_calls,
        speed.gflops_per_s,
        speed.gbytes_per_s,
        speed.attained,
        speed.bound,
        int(group.is_estimate),
        list(group.rows),
    ]


def _rows(profile: GraphProfile) -> dict[str, Any]:
    """Return the rows with their texts counted once: a large program has 10,000 of them."""
    places: dict[str, int] = {}

    def place_of(text: str) -> int:
        return places.setdefault(text, len(places))

    rows = [
        [
            row.call,
            place_of(row.phase),
            place_of(module_label(row.module)),
            place_of(line_label(profile, row)),
            place_of(row.operator),
            place_of(row.parameter),
            row.us,
            int(row.is_estimate),
        ]
        for row in profile.rows
    ]
    return {"texts": list(places), "rows": rows}


def _node(node: Node) -> list[Any]:
    children = [_node(child) for child in ordered_children(node)]
    return [node.name, node.kind, node.detail, node.us, int(node.is_estimate), children]


def _blocks(profile: GraphProfile) -> list[list[Any]]:
    assert profile.liveness is not None
    found = []
    for block in blocks_at_peak(profile.liveness):
        line = profile.line_of(block)
        found.append(
            [
                str(line) if line is not None else module_label(block.module),
                line.code.strip() if line is not None else "",
                block.kind,
                block.shape,
                module_label(block.module),
                block.operator,
                block.size_bytes,
                block.born,
                block.last,
            ]
        )
    return found
