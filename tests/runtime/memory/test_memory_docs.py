"""What docs/memory.md shows is true."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "memory.md"


def test_the_example_runs(capsys):
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    scope = {}
    exec(compile(block, str(PAGE), "exec"), scope)
    assert "MB at the peak" in capsys.readouterr().out
    parts = scope["report"].parts
    for name in parts:
        assert f"| {name} |" in PAGE.read_text(), name
