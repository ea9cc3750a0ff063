"""The code on the page about large graphs runs, block after block."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "large_graphs.md"


def test_the_page_runs():
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert len(blocks) == 4
    names = {}
    for block in blocks:
        exec(compile(block, PAGE.name, "exec"), names)
    assert names["batch"].n_id.shape[0] > 64
