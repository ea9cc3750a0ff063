"""One HTML page that holds the whole report: no scripts, no other files, no requests."""

from __future__ import annotations

import base64
import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torchkiln
from torchkiln.report._comparison import flat_values
from torchkiln.report._molecule_picture import worst_cards
from torchkiln.report._plots import Picture, pictures_of
from torchkiln.report._record import EpochRecord, RunResult
from torchkiln.report._results_file import RESULTS_NAME
from torchkiln.report._rows import Row, compare_with_baseline, summary_groups
from torchkiln.report._theme import DARK, LIGHT
from torchkiln.report._units import (
    error_scale,
    format_count,
    format_error,
    format_loss,
    format_seconds,
    format_short_error,
    significant,
)

# Width at which pictures are shown, in CSS pixels an inch.
_PIXELS_PER_INCH = 96


@dataclass(frozen=True, slots=True)
class Tile:
    """One of the figures that stand in large type at the top."""

    name: str
    value: str
    remark: str = ""


def render_page(result: RunResult, light: Mapping[str, bytes] | None = None) -> str:
    """Return the page as text.

    Args:
        result: The run.
        light: PNGs by name that are drawn already, for a page on a light background.
    """
    columns, epochs = _epoch_table(result)
    return fill_template(
        "page.html",
        version=torchkiln.__version__,
        title=_title(result),
        subtitle=_subtitle(result),
        badge="no better than the baseline" if result.is_beaten else result.status,
        badge_class="beaten" if result.is_beaten else result.status,
        note=result.note or (result.advice if result.is_beaten else ""),
        tiles=_tiles(result),
        pictures=[embed_picture(picture, light) for picture in pictures_of(result)],
        worst=worst_cards(result),
        groups=summary_groups(result),
        epoch_columns=columns,
        epochs=epochs,
        details=_details(result),
        written=datetime.datetime.now().astimezone().strftime("%d %B %Y, %H:%M %Z"),
        results_name=RESULTS_NAME,
    )


def _title(result: RunResult) -> str:
    name, target = result.dataset.get("name", "A training run"), result.dataset.get("target")
    return f"{name}: {target}" if target else str(name)


def _subtitle(result: RunResult) -> str:
    parts = []
    if result.model:
        parameters = result.model.get("parameters")
        count = f" with {parameters:,} parameters" if isinstance(parameters, int) else ""
        parts.append(f"{result.model.get('name', 'SchNet')}{count}")
    train = (result.dataset.get("sizes") or {}).get("train")
    if isinstance(train, int):
        parts.append(f"trained on {format_count(train, result.counted)}")
    if result.epochs:
        parts.append(format_count(len(result.epochs), "epochs"))
    return ", ".join(parts)


def _tiles(result: RunResult) -> list[Tile]:
    tiles = []
    if result.samples_per_s is not None:
        rate = significant(result.samples_per_s, 4)
        tiles.append(Tile("Throughput", rate, f"{result.counted}/s (median)"))
    split = result.judged
    if split is not None:
        name = "Validation" if split is result.validation else "Test"
        short = format_short_error(split.mae, result.unit)
        other_unit = format_error(split.mae, result.unit).removeprefix(short).strip(" ()")
        tiles.append(Tile(f"{name} MAE", short, other_unit))
        if split.factor is not None and split.baseline_mae is not None:
            baseline = format_short_error(split.baseline_mae, result.unit)
            words = compare_with_baseline(split)
            tiles.append(Tile(f"Linear baseline, {name.lower()}", baseline, words))
    if result.packing:
        axis, share = next(iter(result.packing.items()))
        tiles.append(Tile("Slots in use", f"{share:.1%}", axis))
    if result.epoch_seconds is not None:
        compiled = result.compile_seconds
        remark = "" if compiled is None else f"compilation {format_seconds(compiled)}"
        tiles.append(Tile("Epoch", format_seconds(result.epoch_seconds), remark))
    return tiles


def fill_template(name: str, **values: Any) -> str:
    """Return a page; values that a template is given are text, never markup."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("torchkiln.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )
    page: str = environment.get_template(name).render(**values)
    return page


def embed_picture(picture: Picture, light: Mapping[str, bytes] | None = None) -> dict[str, Any]:
    """Return a picture as a template takes it, for light and for dark pages.

    Args:
        picture: To be drawn.
        light: PNGs by name that are drawn already, for a page on a light background.
    """
    width, height, narrow_width, narrow_height = (
        round(_PIXELS_PER_INCH * inches) for inches in (*picture.size, *picture.narrow_size)
    )

    def encoded(png: bytes) -> str:
        return base64.b64encode(png).decode()

    return {
        "title": picture.title,
        "alt": picture.alt,
        "caption": picture.caption,
        "width": width,
        "height": height,
        "narrow_width": narrow_width,
        "narrow_height": narrow_height,
        "light": encoded((light or {}).get(picture.name) or picture.png(LIGHT)),
        "dark": encoded(picture.png(DARK)),
        "narrow_light": encoded(picture.png(LIGHT, narrow=True)),
        "narrow_dark": encoded(picture.png(DARK, narrow=True)),
    }


def _epoch_table(result: RunResult) -> tuple[list[str], list[list[str]]]:
    validated = any(epoch.validation_mae is not None for epoch in result.epochs)
    scale = error_scale(result.unit)
    columns = ["epoch", "loss"]
    if validated:
        columns.append(f"validation MAE ({scale.unit})" if scale.unit else "validation MAE")
    has_losses = not validated and any(e.validation_loss is not None for e in result.epochs)
    if has_losses:
        columns.append("validation loss")
    columns += ["learning rate", f"{result.counted}/s", "time"]

    def cells(epoch: EpochRecord) -> list[str]:
        error = epoch.validation_mae
        shown = "" if error is None else significant(scale.factor * error)
        return [
            str(epoch.epoch + 1),
            format_loss(epoch.loss),
            *([shown] if validated else []),
            *([_loss_or_nothing(epoch.validation_loss)] if has_losses else []),
            f"{epoch.learning_rate:.3g}",
            significant(epoch.samples_per_s, 4),
            format_seconds(epoch.seconds),
        ]

    return columns, [cells(epoch) for epoch in result.epochs]


def _loss_or_nothing(loss: float | None) -> str:
    return "" if loss is None else format_loss(loss)


def _details(result: RunResult) -> dict[str, list[Row]]:
    details = {
        "Settings": flat_rows(result.settings),
        "Model": flat_rows(result.model),
        "Dataset": flat_rows(result.dataset),
        "Machine": flat_rows(result.machine),
    }
    return {title: rows for title, rows in details.items() if rows}


def flat_rows(values: Mapping[str, Any]) -> list[Row]:
    """Return nested values as rows, named as on the command line: `bench.learning_rate`."""
    return list(flat_values(values).items())
