"""`write_report`: everything that a run leaves in its directory."""

from __future__ import annotations

from pathlib import Path

from torchkiln.core import WriteError, write_atomic
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


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise WriteError(
            f"{path} shows an older run and cannot be removed ({error}); remove it yourself, or "
            "report to another folder"
        ) from error
