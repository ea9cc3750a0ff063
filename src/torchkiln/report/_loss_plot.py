"""Loss over the updates, and below it the validation error over the epochs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from torchkiln.report._panels import head_panel, log_scale, plain_numbers
from torchkiln.report._record import EpochRecord, RunResult
from torchkiln.report._theme import Theme
from torchkiln.report._units import error_scale, format_short_error, short_name

Array = npt.NDArray[np.float64]
# More points than this cannot be told apart in a picture.
_MAX_POINTS = 4000
# Up to here every step has a mark of its own, and from here on a smoothed curve helps.
_MAX_MARKED = 60
_MIN_SMOOTHED = 20
_MAX_LARGE_MARKS = 40
# Width of the bell that smooths the curve, as a share of the run.
_SMOOTHED_SHARE = 0.006


def draw_loss(figure: Any, theme: Theme, result: RunResult) -> None:
    """Draw one panel, or two if there are validation errors."""
    validated = [epoch for epoch in result.epochs if drawable(epoch.validation_mae)]
    if validated:
        top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[1.25, 1])
    else:
        top, bottom = figure.subplots(), None
    _draw_steps(top, theme, result)
    if bottom is not None:
        _draw_validation(bottom, theme, result)
    lowest = bottom or top
    lowest.set_xlabel("epochs of training")
    first, last = _range(result)
    room = 0.012 * (last - first)
    lowest.set_xlim(first - room, last + room)
    lowest.xaxis.get_major_locator().set_params(integer=last - first >= 1)
    plain_numbers(lowest.xaxis)


def _range(result: RunResult) -> tuple[float, float]:
    """Return where the run begins and ends on the axis of epochs."""
    if not result.epochs:
        return 0.0, 1.0
    return float(result.epochs[0].epoch), _end(result, result.epochs[-1])


def _end(result: RunResult, epoch: EpochRecord) -> float:
    """Return where an epoch ends; the last one of a run may have stopped on the way."""
    if epoch is not result.epochs[-1] or result.status == "finished":
        return epoch.epoch + 1.0
    whole = max(each.samples for each in result.epochs)
    train = (result.dataset.get("sizes") or {}).get("train")
    if isinstance(train, int):
        whole = max(whole, train)
    return epoch.epoch + (epoch.samples / whole if epoch.samples else 1.0)


def _draw_steps(panel: Any, theme: Theme, result: RunResult) -> None:
    positions, losses = step_curve(result)
    broken = positions[~np.isfinite(losses)]
    if len(broken):
        panel.axvline(
            broken[0], color=theme.second, linestyle="--", linewidth=1.2, label="loss not finite"
        )
    # An update of nothing but filler has loss 0: nothing was learnt there, and a logarithmic axis
    # has no place for it.
    logarithmic = not (losses < 0).any() and not any(epoch.loss < 0 for epoch in result.epochs)
    drawn = thinned(np.flatnonzero(np.isfinite(losses) & ((losses > 0) | (not logarithmic))))
    positions, losses = positions[drawn], losses[drawn]
    is_smoothed = len(losses) >= _MIN_SMOOTHED
    if len(losses):
        marks = {"marker": "o", "markersize": 3.2} if len(losses) <= _MAX_MARKED else {}
        panel.plot(
            positions,
            losses,
            color=theme.main,
            alpha=0.4 if is_smoothed else 1.0,
            linewidth=0.8 if is_smoothed else 1.4,
            label="single steps",
            **marks,
        )
    if is_smoothed:
        smooth = smoothed(losses, max(2.0, _SMOOTHED_SHARE * len(losses)))
        panel.plot(positions, smooth, color=theme.main, linewidth=2, label="smoothed")
    known = [
        epoch
        for epoch in result.epochs
        if math.isfinite(epoch.loss) and (epoch.loss > 0 or not logarithmic)
    ]
    panel.plot(
        [(epoch.epoch + _end(result, epoch)) / 2 for epoch in known],
        [epoch.loss for epoch in known],
        color=theme.second,
        marker="o",
        markersize=_mark_size(result),
        linewidth=0,
        label="mean of an epoch",
    )
    shown = [*losses.tolist(), *(epoch.loss for epoch in known)]
    shown += _draw_validation_losses(panel, theme, result, logarithmic)
    if shown and logarithmic:
        log_scale(panel, shown)
    panel.set_ylabel("loss (transformed target)" if "target" in result.dataset else "loss")
    head_panel(panel, theme, "Training loss")


def _draw_validation_losses(
    panel: Any, theme: Theme, result: RunResult, logarithmic: bool
) -> list[float]:
    """Draw them beside the losses of training, unless errors have a panel; return those shown."""
    if any(epoch.validation_mae is not None for epoch in result.epochs):
        return []
    points = [
        (_end(result, epoch), epoch.validation_loss)
        for epoch in result.epochs
        if epoch.validation_loss is not None
        and math.isfinite(epoch.validation_loss)
        and (epoch.validation_loss > 0 or not logarithmic)
    ]
    if points:
        numbers, losses = zip(*points, strict=True)
        panel.plot(
            numbers,
            losses,
            color=theme.third,
            marker="o",
            markersize=_mark_size(result),
            label="validation",
        )
    return [loss for _, loss in points]


def _draw_validation(panel: Any, theme: Theme, result: RunResult) -> None:
    scale = error_scale(result.unit)
    points = [
        (_end(result, epoch), scale.factor * epoch.validation_mae)
        for epoch in result.epochs
        if epoch.validation_mae is not None and drawable(epoch.validation_mae)
    ]
    numbers, errors = zip(*points, strict=True)
    last = format_short_error(errors[-1] / scale.factor, result.unit)
    panel.plot(
        numbers,
        errors,
        color=theme.third,
        marker="o",
        markersize=_mark_size(result),
        linewidth=1.8,
        label=f"the model; last epoch: {last}",
    )
    _mark_best(panel, theme, result, dict(points))
    shown = list(errors)
    split, whose = result.validation, "this split"
    if split is None:
        split, whose = result.test, "the test split"
    if split is not None and split.baseline_mae is not None and drawable(split.baseline_mae):
        shown.append(scale.factor * split.baseline_mae)
        baseline = format_short_error(split.baseline_mae, result.unit)
        panel.axhline(
            shown[-1],
            color=theme.second,
            linestyle="--",
            linewidth=1.2,
            label=f"linear baseline of {whose}: {baseline}",
        )

    log_scale(panel, shown)
    target = short_name(result.dataset.get("target", "the target"))
    head_panel(panel, theme, f"Validation error of {target}")
    panel.set_ylabel(f"MAE ({scale.unit})" if scale.unit else "MAE")


def _mark_best(panel: Any, theme: Theme, result: RunResult, errors: dict[float, float]) -> None:
    """Ring the epoch whose weights are kept, if the run says which."""
    kept = [epoch for epoch in result.epochs if epoch.epoch == result.best_epoch]
    if not kept or _end(result, kept[0]) not in errors:
        return
    where = _end(result, kept[0])
    text = format_short_error(errors[where] / error_scale(result.unit).factor, result.unit)
    panel.plot(
        [where],
        [errors[where]],
        color=theme.ink,
        marker="o",
        markersize=9.0,
        markerfacecolor="none",
        linewidth=0,
        label=f"weights that are kept: {text}",
    )


def step_curve(result: RunResult) -> tuple[Array, Array]:
    """Return where on the axis of epochs each step lies, and its loss.

    An interrupted epoch takes as much room as it has samples.
    """
    steps = np.array([step for step, _ in result.steps], np.float64)
    losses = np.array([loss for _, loss in result.steps], np.float64)
    if not len(steps):
        return steps, losses
    first, last = _range(result)
    positions = first + (last - first) * (steps - steps[0] + 1) / (steps[-1] - steps[0] + 1)
    return positions, losses


def _mark_size(result: RunResult) -> float:
    """Return the size of what marks an epoch: those of a long run must not become one band."""
    return 4.5 if len(result.epochs) <= _MAX_LARGE_MARKS else 2.0


def thinned(indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    if len(indices) <= _MAX_POINTS:
        return indices
    return indices[np.linspace(0, len(indices) - 1, _MAX_POINTS).round().astype(np.int64)]


def smoothed(values: Array, width: float) -> Array:
    """Return the mean over neighbours on both sides, weighted by a bell of `width` points.

    Of the values themselves, also on a logarithmic axis: the mean of an epoch is one of them too.
    """
    reach = min(int(3 * width), (len(values) - 1) // 2)
    bell = np.exp(-0.5 * (np.arange(-reach, reach + 1) / width) ** 2)
    # Near the ends only the neighbours that exist count.
    weight = np.convolve(np.ones_like(values), bell, "same")
    return np.asarray(np.convolve(values, bell, "same") / weight)


def drawable(value: float | None) -> bool:
    """Tell whether a value has a place on a logarithmic axis."""
    return value is not None and math.isfinite(value) and value > 0
