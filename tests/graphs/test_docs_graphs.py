"""What docs/graphs.md shows is true."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "graphs.md"


def test_all_examples_run(capsys):
    scope: dict = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert len(blocks) == 6
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), scope)
    printed = capsys.readouterr().out
    assert "40 graphs in" in printed
    assert "GraphStore(40 graphs)" in printed


def test_links_lead_somewhere():
    links = re.findall(r"\]\(([^)#:]+)\)", PAGE.read_text())
    assert [link for link in links if not (PAGE.parent / link).exists()] == []
