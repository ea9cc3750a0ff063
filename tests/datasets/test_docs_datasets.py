"""What docs/datasets.md shows is true."""

import re
from pathlib import Path

from torchkiln.datasets import QM9_TARGETS, qm9_arrays
from torchkiln.datasets.qm9 import _source as source_module

PAGE = Path(__file__).parents[2] / "docs" / "datasets.md"


def test_examples_run_on_short_tables(qm9_tables, monkeypatch, capsys):
    monkeypatch.setattr(source_module, "_installed_folder", lambda: qm9_tables)
    scope: dict = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert len(blocks) == 5
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), scope)
    printed = capsys.readouterr().out
    assert f"QM9: {len(qm9_arrays(progress=False)):,} molecules" in printed
    shown = re.search(r"# (Data\(z=.*)", PAGE.read_text())
    assert shown is not None
    assert shown[1] in printed


def test_every_target_is_in_the_table():
    rows = re.findall(r"^\| (`[^|]+) \| ([^|]+) \|", PAGE.read_text(), flags=re.MULTILINE)
    shown = {name: unit for names, unit in rows for name in re.findall(r"`(\w+)`", names)}
    for target, (_, unit) in QM9_TARGETS.items():
        assert shown[target] == unit


def test_links_of_the_page_lead_somewhere():
    links = re.findall(r"\]\(([^)#:]+)\)", PAGE.read_text())
    assert [link for link in links if not (PAGE.parent / link).exists()] == []
