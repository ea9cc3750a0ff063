from __future__ import annotations

import base64
import dataclasses
import math
import struct
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from _sample_runs import sample_run

from torchkiln.report import (
    EpochRecord,
    RunResult,
    ValidationResult,
    _theme,
    write_report,
)
from torchkiln.report._page import render_page
from torchkiln.report._plots import pictures_of
from torchkiln.report._theme import DARK, LIGHT
from torchkiln.report._write import PAGE_NAME

VOID = {"meta", "link", "img", "source", "wbr"}
REFERENCES = ("src", "href", "srcset", "action", "data")


class Page(HTMLParser):
    """Checks that tags are closed in order, and collects what tests ask for."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data

    def attributes(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def png_size(content: bytes) -> tuple[int, int]:
    assert content.startswith(b"\x89PNG\r\n")
    return struct.unpack(">II", content[16:24])


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> tuple[Path, Page]:
    directory = tmp_path_factory.mktemp("report")
    paths = write_report(sample_run(), directory)
    assert paths[-1] == directory / PAGE_NAME
    return directory, Page(paths[-1].read_text())


def test_everything_is_written(written):
    directory, _ = written
    assert sorted(path.name for path in directory.iterdir()) == [
        "loss.png",
        "predictions.png",
        "report.html",
        "results.json",
        "results.npz",
        "throughput.png",
    ]
    for name in ("loss", "predictions", "throughput"):
        width, height = png_size((directory / f"{name}.png").read_bytes())
        assert width >= 1400
        assert height >= 500


def test_the_page_needs_nothing_but_itself(written):
    directory, page = written
    for _, attributes in page.tags:
        for name in REFERENCES:
            if name in attributes:
                assert attributes[name].startswith("data:"), attributes[name][:80]
    text = (directory / PAGE_NAME).read_text()
    assert "<script" not in text
    assert "url(" not in text.replace("url(#", "")  # within the page
    assert "@import" not in text


def test_pictures_are_embedded_for_light_and_dark_pages_and_described(written):
    directory, page = written
    images, sources = page.attributes("img"), page.attributes("source")
    assert len(images) == 3
    assert len(sources) == 9  # narrow and dark, narrow, dark
    for image, name in zip(images, ("loss", "predictions", "throughput"), strict=True):
        content = base64.b64decode(image["src"].partition(",")[2])
        assert content == (directory / f"{name}.png").read_bytes()
        assert len(image["alt"]) > 40
    media = [source["media"] for source in sources]
    assert sum("prefers-color-scheme: dark" in each for each in media) == 6
    assert sum("max-width" in each for each in media) == 6
    # Paper is white and wide: it gets the picture itself.
    assert all(each.startswith("screen and") for each in media)
    assert len({source["srcset"] for source in sources} | {image["src"] for image in images}) == 12


def test_figures_and_settings_stand_in_the_page_escaped(written):
    _, page = written
    assert page.attributes("html") == [{"lang": "en"}]
    for text in ("QM9: U0", "437 meV", "bench.learning_rate", "qm9 <packed>", "AMD EPYC"):
        assert text in page.text, text
    assert len(page.attributes("tr")) > 12 + 20  # epochs, and the rows of the other tables
    assert "packed" not in [tag for tag, _ in page.tags]


def test_a_run_that_loses_to_the_baseline_has_no_green_badge(monkeypatch):
    monkeypatch.setattr(_theme, "_DPI", 30)
    lost = dataclasses.replace(
        sample_run(num_epochs=1, num_molecules=50),
        test=ValidationResult.compare(np.ones(9), np.zeros(9), baseline_mae=0.5),
        advice="Try <more> epochs.",
    )
    page = render_page(lost)
    assert '<span class="status beaten">no better than the baseline</span>' in page
    assert "Try &lt;more&gt; epochs." in page
    won = render_page(sample_run(num_epochs=1, num_molecules=50))
    assert '<span class="status finished">finished</span>' in won


def test_a_picture_of_an_older_run_does_not_stay(tmp_path):
    (tmp_path / "predictions.png").write_bytes(b"old")
    (tmp_path / "mine.txt").write_text("keep")
    write_report(RunResult(status="interrupted", note="go on with --resume true"), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "mine.txt",
        "report.html",
        "results.json",
        "results.npz",
    ]
    assert "go on with --resume true" in Page((tmp_path / PAGE_NAME).read_text()).text


def epoch(number: int, loss: float, mae: float | None = None) -> EpochRecord:
    return EpochRecord(number, loss, 1.0, 100, 100.0, 1e-3, mae)


def split(count: int, spread: float) -> ValidationResult:
    true = np.linspace(-1.0, 1.0, count)
    return ValidationResult.compare(true + spread * np.sin(7 * np.arange(count)), true)


ODD_RUNS = {
    "one epoch": RunResult(status="finished", epochs=[epoch(0, 0.5)], steps=[(0, 0.5)]),
    "NaN": RunResult(
        status="failed",
        epochs=[epoch(0, 0.5, 0.1), epoch(1, math.nan, math.nan)],
        steps=[(0, 0.5), (1, math.nan)],
    ),
    "all NaN": RunResult(status="failed", epochs=[epoch(0, math.nan)], steps=[(0, math.nan)]),
    "zero and negative losses": RunResult(
        status="finished",
        epochs=[epoch(0, 0.0, 0.0), epoch(1, -1.0, 0.1)],
        steps=[(step, 1.0 - step) for step in range(30)],
    ),
    "resumed": RunResult(
        status="finished",
        epochs=[epoch(7, 0.5, 0.1)],
        steps=[(step, 0.5) for step in range(700, 800)],
    ),
    "many epochs": RunResult(
        status="finished", epochs=[epoch(number, 1 / (1 + number), 0.1) for number in range(200)]
    ),
    "perfect": RunResult(status="finished", test=split(40, 0.0)),
    "one molecule": RunResult(status="finished", test=split(1, 0.1)),
    "some not finite": RunResult(
        status="finished",
        test=ValidationResult.compare(np.array([1.0, math.nan, math.inf]), np.ones(3)),
    ),
    "none finite": RunResult(
        status="finished", test=ValidationResult.compare(np.array([math.nan]), np.ones(1))
    ),
    "nothing validated": RunResult(status="finished", validation=split(0, 0.0)),
}


@pytest.mark.parametrize("name", ODD_RUNS)
def test_odd_runs_are_drawn_and_described(name, monkeypatch):
    monkeypatch.setattr(_theme, "_DPI", 40)
    result = dataclasses.replace(ODD_RUNS[name], dataset={"target": "gap", "unit": "eV"})
    pictures = pictures_of(result)
    has_predictions = result.test is not None
    assert len(pictures) == sum([bool(result.epochs), len(result.epochs) > 1, has_predictions])
    for picture in pictures:
        assert png_size(picture.png(LIGHT))[0] == 40 * picture.size[0]
        assert picture.alt.endswith(".")


def test_the_caller_s_matplotlib_is_left_alone():
    import matplotlib

    before = dict(matplotlib.rcParams)
    pictures_of(ODD_RUNS["one epoch"])[0].png(DARK)
    assert dict(matplotlib.rcParams) == before


def page_of(result: RunResult, monkeypatch) -> Page:
    monkeypatch.setattr(_theme, "_DPI", 30)
    return Page(render_page(result))


def test_one_epoch_and_one_molecule_are_singulars(monkeypatch):
    result = sample_run(num_epochs=1, num_molecules=1)
    result.dataset["sizes"] = {"train": 1, "validation": 1, "test": 1}
    text = page_of(result, monkeypatch).text
    assert "trained on 1 molecule, 1 epoch" in text
    assert "1 epochs" not in text
    assert "1 molecules" not in text


def test_both_baselines_are_explained(written):
    _, page = written
    assert "Linear baseline, test" in page.text
    (words,) = [
        line for line in page.text.splitlines() if "predicts from the formula alone" in line
    ]
    assert "441 meV on the validation split and 437 meV on the test split" in words
    assert "least-squares fit to the number of atoms of each element" in words
    assert "subtracted from both axes" in page.text


def test_long_names_break_between_their_words(written):
    directory, _ = written
    text = (directory / PAGE_NAME).read_text()
    assert "bench.learning_<wbr>rate" in text
    assert "qm9 &lt;packed&gt;" in text


def test_units_of_tiles_stand_on_the_line_of_their_numbers(written):
    directory, page = written
    text = (directory / PAGE_NAME).read_text()
    assert '437 <span class="unit">meV</span>' in text
    assert "437 meV" in page.text
    assert "<dd>98.3%<small>" in text
