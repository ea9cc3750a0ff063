"""One HTML page that compares runs: no scripts, no other files, no requests."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from functools import partial

import torchkiln
from torchkiln.report._comparison import (
    NamedRun,
    differing_settings,
    incomparable,
    side_by_side,
)
from torchkiln.report._comparison_plot import comparison_size, draw_comparison
from torchkiln.report._page import embed_picture, fill_template
from torchkiln.report._plots import Picture
from torchkiln.report._units import format_short_error


def render_comparison(runs: Sequence[NamedRun]) -> str:
    """Return the page as text."""
    pictures = []
    if any(run.result.epochs for run in runs):
        pictures.append(embed_picture(_curves(runs)))
    return fill_template(
        "comparison.html",
        version=torchkiln.__version__,
        title=f"{len(runs)} runs compared",
        runs=runs,
        subtitle=", ".join(run.name for run in runs),
        warning=_warning(runs),
        groups=side_by_side(runs),
        settings=differing_settings(runs),
        pictures=pictures,
        written=datetime.datetime.now().astimezone().strftime("%d %B %Y, %H:%M %Z"),
    )


def _warning(runs: Sequence[NamedRun]) -> str:
    reason = incomparable(runs)
    return f"Losses of these runs cannot be compared by their height: {reason}." if reason else ""


def _curves(runs: Sequence[NamedRun]) -> Picture:
    return Picture(
        "comparison",
        "Learning curves",
        f"Training loss and validation error of {len(runs)} runs over their epochs: "
        + "; ".join(_in_words(run) for run in runs)
        + ".",
        comparison_size(runs),
        comparison_size(runs, narrow=True),
        partial(draw_comparison, runs=runs),
    )


def _in_words(run: NamedRun) -> str:
    errors = [e.validation_mae for e in run.result.epochs if e.validation_mae is not None]
    if not errors:
        return f"{run.name} without validation"
    first, last = (format_short_error(error, run.result.unit) for error in (errors[0], errors[-1]))
    return f"{run.name} from {first} to {last}"
