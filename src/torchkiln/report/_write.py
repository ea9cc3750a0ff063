"""`write_report`: everything that a run leaves in its directory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torchkiln.core import StoreError, WriteError, span, write_atomic
from torchkiln.report._page import render_page
from torchkiln.report._plots import PICTURE_NAMES, pictures_of
from torchkiln.report._record import RunResult
from torchkiln.report._results_file import save_result
from torchkiln.report._theme import LIGHT

PAGE_NAME = "report.html"


def write_report(result: RunResult, directory: Path) -> list[Path]:
    """Write the figures, the pictures and the page; return what was written, the page last.

    `results.json` comes first: should a picture fail, the figures are safe. A picture of an older
    run in `directory` that this run has no figures for is removed, as it would be misleading.

    Raises:
        WriteError: if the disk is full or cannot be written.
    """
    written = list(save_result(result, directory))
    light = {picture.name: picture.png(LIGHT) for picture in pictures_of(result)}
    for name in PICTURE_NAMES:
        path = directory / f"{name}.png"
        if name in light:
            write_atomic(path, light[name])
            written.append(path)
        else:
            _remove(path)
    page = directory / PAGE_NAME
    write_atomic(page, render_page(result, light))
    return [*written, page]


def publish(
    result: RunResult, directory: Path, show: Callable[[RunResult], None] | None = None
) -> Path:
    """Write the report and show the figures, which must be shown even if it cannot be written.

    Returns:
        The page.

    Raises:
        StoreError: The report could not be written; the figures were shown.
    """
    failure = None
    try:
        with span("report", "write report"):
            write_report(result, directory)
    except OSError as error:
        failure = error
    if show is not None:
        show(result)
    if failure is not None:
        raise StoreError(
            f"the report could not be written to {directory}: {failure}; what was printed is all "
            "there is of it"
        ) from failure
    return directory / PAGE_NAME


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise WriteError(
            f"{path} shows an older run and cannot be removed ({error}); remove it yourself, or "
            "report to another folder"
        ) from error
