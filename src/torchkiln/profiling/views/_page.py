"""One HTML page that holds a whole profile: no requests, and readable without its scripts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from torchkiln.core import __version__
from torchkiln.profiling.graph._values import GraphProfile, Insight
from torchkiln.profiling.views._flame import module_tree, static_boxes
from torchkiln.profiling.views._liveness_plot import blocks_at_peak, draw_liveness, highest
from torchkiln.profiling.views._numbers import (
    UNKNOWN,
    format_bytes,
    format_rate,
    format_share,
    format_us,
    plain_us,
)
from torchkiln.profiling.views._page_data import embed_data
from torchkiln.profiling.views._roofline import draw_roof
from torchkiln.profiling.views._totals import View, group_rows, module_label, phases_of
from torchkiln.report._units import format_count, format_seconds, significant

# Without a script, and on paper, tables end here; `profile.json` has the rest.
_STATIC_ROWS = 40
_STATIC_VIEWS: tuple[View, ...] = ("line", "module", "operator", "phase")
_NUM_DOTS = 40


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a bar: what it is, how much, and its class in the style sheet."""

    name: str
    text: str
    share: float
    css: str
    meaning: str = ""


def render_page(profile: GraphProfile) -> str:
    """Return the page as text."""
    import jinja2
    import markupsafe

    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader(
            [
                jinja2.PackageLoader("torchkiln.profiling.views"),
                jinja2.PackageLoader("torchkiln.report"),  # style.css, which all pages share
            ]
        ),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {
        "bytes": format_bytes,
        "us": format_us,
        "plain_us": plain_us,
        "rate": format_rate,
        "share": format_share,
        "unknown": UNKNOWN,
        "count": format_count,
        "module_label": module_label,
    }
    page: str = environment.get_template("profile.html").render(
        profile=profile,
        version=__version__,
        title=f"{profile.name}: {profile.model}",
        subtitle=_subtitle(profile),
        parts=_time_parts(profile),
        tiles=_tiles(profile),
        compile_parts=_compile_parts(profile),
        insights=[(insight, _gain(insight, profile)) for insight in profile.insights],
        phases=phases_of(profile),
        static=_static_groups(profile),
        static_rows=_STATIC_ROWS,
        has_estimates=any(row.is_estimate for row in profile.rows),
        flame=static_boxes(module_tree(profile)) if profile.times is not None else [],
        roof=_roof(profile),
        **_memory(profile),
        facts=_facts(profile),
        data=markupsafe.Markup(embed_data(profile)),
    )
    return page


def _subtitle(profile: GraphProfile) -> str:
    what = "one weight update" if profile.training else "one micro-batch"
    parts = [
        f"{format_count(profile.num_parameters, 'parameters')}",
        f"a step is {what}",
    ]
    if profile.micro_batches_per_step > 1:
        parts.append(f"{profile.micro_batches_per_step} micro-batches in a step")
    if profile.steps_per_call > 1:
        parts.append(f"{profile.steps_per_call} steps in a call")
    return ", ".join(parts)


def _tiles(profile: GraphProfile) -> list[tuple[str, str, str]]:
    """Return name, value and remark of the figures at the top."""
    tiles = []
    times = profile.times
    if times is not None:
        rate = f"{significant(1e6 / times.loop_us)} steps/s" if times.loop_us > 0 else ""
        tiles.append(("One step", format_us(times.loop_us), rate))
        share = format_share(times.executable_us, times.loop_us)
        remark = f"{share} of the step" if times.loop_us > 0 else ""
        tiles.append(("Executable", format_us(times.executable_us), remark))
        slowest = f"{times.steps_measured} measured, slowest {format_us(times.slowest_us)}"
        tiles.append(("Steps averaged", str(times.steps_used), slowest))
    liveness = profile.liveness
    if liveness is not None:
        free = format_bytes(liveness.machine_bytes)
        remark = f"{'fits into' if liveness.fits else 'does not fit into'} {free} that were free"
        tiles.append(("Memory at the peak", format_bytes(liveness.total_bytes), remark))
    seconds = math.fsum(profile.compile_seconds.values())
    if profile.from_cache:
        tiles.append(("Compilation", "none", "came from the cache"))
    elif seconds:
        tiles.append(("Compilation", format_seconds(seconds), "once"))
    return tiles


def _time_parts(profile: GraphProfile) -> list[Part]:
    """Return what a step in its loop consists of."""
    times = profile.times
    if times is None:
        return []
    parts = [
        ("Executable", times.executable_us, "executable", "the native code that was compiled"),
        ("Outside", times.outside_us, "outside", "Python and marshalling of tensors around it"),
        ("Waiting for data", times.waiting_us, "waiting", "between two calls, for the next batch"),
        ("Other", times.other_us, "other", "everything else between two calls"),
    ]
    found = [
        Part(
            name,
            f"{format_us(us)} ({format_share(us, times.loop_us)})",
            100 * us / times.loop_us if times.loop_us > 0 else 0.0,
            css,
            meaning,
        )
        for name, us, css, meaning in parts
        if us is not None
    ]
    if times.waiting_us is None:
        note = "the loop that calls the program was not seen"
        found.append(Part("Waiting and other", "not measured", 0.0, "other", note))
    return found


def _compile_parts(profile: GraphProfile) -> list[Part]:
    total = math.fsum(profile.compile_seconds.values())
    return [
        Part(name, format_seconds(seconds), 100 * seconds / total if total else 0.0, "executable")
        for name, seconds in profile.compile_seconds.items()
    ]


def _gain(insight: Insight, profile: GraphProfile) -> str:
    gains = []
    if insight.gain_us is not None:
        loop = profile.times.loop_us if profile.times is not None else 0.0
        share = f", {format_share(insight.gain_us, loop)} of it" if loop > 0 else ""
        gains.append(f"about {format_us(insight.gain_us)} in each step{share}")
    if insight.gain_bytes is not None:
        gains.append(f"about {format_bytes(insight.gain_bytes)} of memory")
    return " and ".join(gains)


def _static_groups(profile: GraphProfile) -> list[dict[str, Any]]:
    """Return the tables of a page without scripts: the longest groups of each view."""
    if profile.times is None:
        return []
    tables = []
    for view in _STATIC_VIEWS:
        groups = group_rows(profile, view)
        tables.append({"view": view, "groups": groups[:_STATIC_ROWS], "count": len(groups)})
    return tables


def _roof(profile: GraphProfile) -> Any:
    groups = [group for group in group_rows(profile, "operator") if group.rows][:_NUM_DOTS]
    return draw_roof(
        profile, ((group.label, [profile.rows[place] for place in group.rows]) for group in groups)
    )


def _memory(profile: GraphProfile) -> dict[str, Any]:
    liveness = profile.liveness
    nothing: dict[str, Any] = {"plots": [], "blocks": [], "num_blocks": 0, "memory_note": ""}
    if liveness is None:
        return nothing
    blocks = blocks_at_peak(liveness)
    listed = sum(block.size_bytes for block in blocks)
    note = ""
    # Both must be the same; whoever reads is told if they are not.
    if listed != liveness.peak_bytes:
        note = (
            f"The blocks below add up to {format_bytes(listed)}, the plan says "
            f"{format_bytes(liveness.peak_bytes)}."
        )
    elif (top := highest(liveness, len(profile.calls))[1]) != liveness.peak_bytes:
        note = (
            f"The largest sum over the calls is {format_bytes(top)}, the plan says "
            f"{format_bytes(liveness.peak_bytes)}."
        )
    drawings = [draw_liveness(profile, with_always=always) for always in (True, False)]
    return {
        "plots": [drawing for drawing in drawings if drawing is not None],
        "blocks": [(block, profile.line_of(block)) for block in blocks[:_STATIC_ROWS]],
        "num_blocks": len(blocks),
        "memory_note": note,
    }


def _facts(profile: GraphProfile) -> dict[str, dict[str, str]]:
    """Return what the program was, by title; empty ones are left out."""
    facts = {
        "Program": {
            "name": profile.name,
            "model": profile.model,
            "backend": profile.backend,
            "inputs": ", ".join(profile.inputs),
            "steps in a call": str(profile.steps_per_call),
            "micro-batches in a step": str(profile.micro_batches_per_step),
            "profiled": profile.created,
        },
        "Options that differ from the defaults": profile.options,
        "Machine": {
            **profile.machine,
            **(
                {}
                if profile.peaks is None
                else {
                    "measured peak of the processor": f"{profile.peaks.gflops_per_s:,.1f} GFLOP/s",
                    "measured peak of memory": f"{profile.peaks.gbytes_per_s:,.1f} GB/s",
                }
            ),
        },
        "Versions": profile.versions,
    }
    shown = {t: {k: v for k, v in values.items() if v} for t, values in facts.items()}
    return {title: values for title, values in shown.items() if values}
