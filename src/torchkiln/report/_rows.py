"""The figures of a run as titled groups of (name, text) rows: the table and the page show them."""

from __future__ import annotations

from typing import Any

from torchkiln.report._record import RunResult, ValidationResult, WorldRecord
from torchkiln.report._units import (
    format_error,
    format_loss,
    format_rate,
    format_seconds,
    significant,
)

Row = tuple[str, str]
_STATUS = {
    "finished": "finished",
    "interrupted": "interrupted: figures up to that point",
    "failed": "FAILED",
}


def summary_groups(result: RunResult) -> dict[str, list[Row]]:
    """Return what a closing table shows, by heading; groups without figures are left out."""
    groups = {
        "Experiment": _experiment(result),
        "Speed": _speed(result),
        "Accuracy": _accuracy(result),
    }
    return {title: rows for title, rows in groups.items() if rows}


def status_text(result: RunResult) -> str:
    """Say how a run ended; one that is no better than its baseline has not succeeded."""
    return (
        "finished, but no better than the linear baseline"
        if result.is_beaten
        else _STATUS[result.status]
    )


def compare_with_baseline(split: ValidationResult) -> str:
    """Say how the error of the model compares with that of the baseline; empty if it cannot."""
    if split.is_baseline_exact:
        return "exact: nothing is left to learn"
    factor = split.factor
    if factor is None:
        return ""
    if factor >= 1:
        return f"model {significant(factor)} times better"
    return f"model {significant(1 / factor)} times worse"


def _experiment(result: RunResult) -> list[Row]:
    rows = [("Status", status_text(result))]
    if result.note:
        rows.append(("", result.note))
    if result.is_beaten and result.advice:
        rows.append(("", result.advice))
    dataset = result.dataset
    if dataset:
        unit = f" ({result.unit})" if result.unit else ""
        target = f", target {dataset['target']}{unit}" if "target" in dataset else ""
        rows.append(("Dataset", f"{dataset.get('name', '?')}{target}"))
        if sizes := _sizes(dataset):
            rows.append((result.counted.capitalize(), sizes))
        if source := dataset.get("source"):
            rows.append(("Source", str(source)))
    if model := result.model:
        parameters = model.get("parameters")
        count = f", {parameters:,} parameters" if isinstance(parameters, int) else ""
        rows.append(("Model", f"{model.get('name', 'SchNet')}{count}"))
    return rows


def _sizes(dataset: dict[str, Any]) -> str:
    sizes = dataset.get("sizes") or {}
    return ", ".join(f"{count:,} {split}" for split, count in sizes.items())


def _speed(result: RunResult) -> list[Row]:
    rows: list[Row] = []
    median, best = result.samples_per_s, result.best_samples_per_s
    if median is not None and best is not None:
        rate = format_rate(median, result.counted)
        rows.append(("Throughput", f"{rate} (best epoch {significant(best, 4)})"))
    if result.world is not None:
        rows.append(("Processes", _processes(result.world, result.counted)))
    if result.epoch_seconds is not None:
        first = result.epochs[0].seconds
        count = len(result.epochs)
        text = f"{count} epoch{'s' * (count > 1)} of {format_seconds(result.epoch_seconds)}"
        rows.append(("Epochs", f"{text} (first {format_seconds(first)})" if count > 1 else text))
        rows.append(("Training", format_seconds(sum(epoch.seconds for epoch in result.epochs))))
    if result.compile_seconds is not None:
        rows.append(("Compilation", format_seconds(result.compile_seconds)))
    if result.packing:
        shares = ", ".join(f"{axis} {share:.1%}" for axis, share in result.packing.items())
        rows.append(("Slots in use", shares))
    return rows


def _processes(world: WorldRecord, counted: str) -> str:
    hosts = f" on {world.num_hosts} hosts" if world.num_hosts > 1 else ""
    rate = format_rate(world.samples_per_s / world.size, counted)
    return f"{world.size}{hosts}, {rate} each, {world.collective_share:.1%} in gradient sums"


def _accuracy(result: RunResult) -> list[Row]:
    rows: list[Row] = []
    if result.epochs:
        rows.append(("Final loss", format_loss(result.epochs[-1].loss)))
    losses = [e.validation_loss for e in result.epochs if e.validation_loss is not None]
    if losses and result.validation is None:
        rows.append(("Validation loss", format_loss(losses[-1])))
    if result.epochs:
        for name, value in result.epochs[-1].figures.items():
            rows.append((name.replace("/", " ").replace("_", " ").capitalize(), significant(value)))
    for name, split in (("Validation", result.validation), ("Test", result.test)):
        if split is not None:
            rows.append((f"{name} MAE", format_error(split.mae, result.unit)))
            rows.append((f"{name} RMSE", format_error(split.rmse, result.unit)))
    if (split := result.judged) is not None and split.baseline_mae is not None:
        parts = [format_error(split.baseline_mae, result.unit), compare_with_baseline(split)]
        rows.append(("Linear baseline MAE", ", ".join(filter(None, parts))))
    if result.best_epoch is not None and result.epochs:
        text = f"those after epoch {result.best_epoch + 1} of {len(result.epochs)}"
        rows.append(("Best weights", f"{text}, by validation error"))
    return rows
