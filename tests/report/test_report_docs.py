"""What docs/report.md shows is true."""

import re
from pathlib import Path

from torchkiln.report._plots import PICTURE_NAMES
from torchkiln.report._results_file import RESULTS_NAME, SERIES_NAME
from torchkiln.report._write import PAGE_NAME

PAGE = Path(__file__).parents[2] / "docs" / "report.md"


def test_the_example_runs(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    exec(compile(block, str(PAGE), "exec"), {})
    assert "validation MAE 43.0 meV" in capsys.readouterr().err


def test_every_file_of_a_report_is_named():
    text = PAGE.read_text()
    pictures = [f"{name}.png" for name in PICTURE_NAMES]
    for name in (*pictures, RESULTS_NAME, SERIES_NAME, PAGE_NAME):
        assert f"`{name}`" in text, name
