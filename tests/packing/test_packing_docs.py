"""What docs/packing.md shows is true."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "packing.md"


def test_the_examples_run_one_after_another(capsys):
    scope = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), scope)
    assert "10,000 graphs in" in capsys.readouterr().out
    assert min(scope["plan"].efficiency[axis] for axis in ("nodes", "edges")) > 0.98
    together = scope["ordinary"].num_graphs + scope["giants"].num_graphs
    assert together == 10_000
    assert len(scope["giants"]) > 0
